"""The smallest model that sees: BLIP-2 with random weights, its tokenizer and its processor.

Others of vLLM's multimodal models import torchvision, which has no CPU build on the index.
"""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

__all__ = ["IMAGE_SIZE", "image_message", "write_blip2"]

IMAGE_SIZE = 32
IMAGE_TOKENS = 4
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<image>")
WORDS = 507
ROWS = 640
"""Rows of the table of tokens, a multiple of 64."""
TEMPLATE = (
    "{% for part in messages[0].content if part.type == 'text' %}{{ part.text }} {% endfor %}"
)


def write_blip2(directory: Path) -> None:
    """Write configuration, tokenizer and processor; the weights are dummies."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        Blip2Config,
        Blip2Processor,
        BlipImageProcessor,
        PreTrainedTokenizerFast,
    )

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Blip2Config(
        vision_config={
            **small,
            "intermediate_size": 64,
            "image_size": IMAGE_SIZE,
            "patch_size": 16,
        },
        qformer_config={
            **small,
            "vocab_size": ROWS,
            "intermediate_size": 64,
            "encoder_hidden_size": 64,
            "cross_attention_frequency": 1,
        },
        text_config={
            **small,
            "model_type": "opt",
            "vocab_size": ROWS,
            "ffn_dim": 128,
            "word_embed_proj_dim": 64,
            "max_position_embeddings": 512,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        num_query_tokens=IMAGE_TOKENS,
        image_token_index=SPECIAL.index("<image>"),
    )
    config.architectures = ["Blip2ForConditionalGeneration"]
    config.save_pretrained(directory)
    words = [*SPECIAL, *(f"w{number}" for number in range(WORDS))]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        additional_special_tokens=["<image>"],
        chat_template=TEMPLATE,
    )
    images = BlipImageProcessor(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE})
    Blip2Processor(images, fast, num_query_tokens=IMAGE_TOKENS).save_pretrained(directory)
    fast.save_pretrained(directory)


def image_message(red: int) -> dict[str, Any]:
    """Return the body of a chat about an image, which is another one for each red."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (IMAGE_SIZE, IMAGE_SIZE), (red, 20, 30)).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    content = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "w1 w2 w3"},
    ]
    return {"messages": [{"role": "user", "content": content}]}
