"""Cases of a multimodal encoder in a service of its own, whose outputs another one takes.

The client, or a proxy, has the encoder encode an image and then asks the service that holds the
language model, which reads what was encoded from a directory.
"""

from __future__ import annotations

import json
import time

from tests.integration.tiny_blip2 import image_message, write_blip2
from tests.services.acts import nothing
from tests.services.case import Case, Moment, Truth, healthy
from tests.services.service import Service

__all__ = ["CASES"]

TRANSFER = {
    "ec_connector": "ECExampleConnector",
    "ec_role": "ec_producer",
    "ec_connector_extra_config": {"shared_storage_path": "{directory}/encoded"},
}
ENCODER = {
    "tensor_parallel_size": 1,
    "tokenizer": True,
    "prepare": write_blip2,
    "arguments": [
        *("--limit-mm-per-prompt", '{"image": 1}', "--no-enable-prefix-caching"),
        *("--ec-transfer-config", json.dumps(TRANSFER)),
    ],
}
ENCODED_SECONDS = 60.0


def _encode(service: Service) -> None:
    """Have three images encoded."""
    for red in range(3):
        list(service.server.chat(image_message(red), 1, ENCODED_SECONDS))
    if len(list((service.switch.parent / "encoded").glob("*/*.safetensors"))) < 3:
        raise RuntimeError("an image was not encoded")


def _keep_encoding(service: Service) -> None:
    began = time.monotonic()

    def encode() -> None:
        list(service.server.chat(image_message(int(time.monotonic() - began) % 256), 1, 30.0))

    service.repeat(2, 25.0, encode)


def _lose_reply(service: Service) -> None:
    service.plant("lose_reply")
    service.leave(lambda: list(service.server.chat(image_message(200), 1, 600.0)))


CASES = [
    Case(
        "encoder_healthy",
        [
            Moment(healthy("an encoder without a language model rests"), _encode, "encoded"),
            Moment(healthy("two clients have images encoded"), _keep_encoding, "busy", 4.0),
            Moment(healthy("nobody has asked for half a minute"), nothing, "idle", 50.0),
        ],
        ENCODER,
    ),
    Case(
        "encoder_reply_lost",
        [
            Moment(
                Truth(
                    "the encoder's worker has encoded the image, and its answer never reached "
                    "the engine",
                    kinds=("rpc_stalled",),
                    ranks=(0,),
                ),
                _lose_reply,
            )
        ],
        ENCODER,
    ),
]
