"""Secrets on command lines: gone before anything is recorded, and nothing else with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ncclscope.attach.processes import describe
from ncclscope.redaction import redact_text, redact_words
from tests.support.programs import run_program

SECRETS = {
    "option with =": (["--api-key=hunter2"], ["--api-key=***"]),
    "option and word": (["--hf-token", "hunter2", "x.py"], ["--hf-token", "***", "x.py"]),
    "several words": (["--api-key", "hunter2", "hunter3", "-v"], ["--api-key", "***", "***", "-v"]),
    "path behind": (["--api-key", "hunter2", "org/model"], ["--api-key", "***", "org/model"]),
    "underscores": (["--db_password", "hunter2"], ["--db_password", "***"]),
    "one dash": (["-password", "hunter2"], ["-password", "***"]),
    "nothing behind": (["--token"], ["--token"]),
    "option behind": (["--token", "--x", "1"], ["--token", "--x", "1"]),
    "capitals": (["--apiKey=hunter2"], ["--apiKey=***"]),
    "in one word": (["--apikey=hunter2"], ["--apikey=***"]),
    "plural": (["--credentials=hunter2"], ["--credentials=***"]),
    "blanks": (["--password=hunter2, and hunter3"], ["--password=***"]),
    "variable": (["env", "HF_TOKEN=hunter2"], ["env", "HF_TOKEN=***"]),
    "dotted": (["+hub.secret=hunter2"], ["+hub.secret=***"]),
    "AWS": (["AWS_SECRET_ACCESS_KEY=hunter2"], ["AWS_SECRET_ACCESS_KEY=***"]),
    "URL": (["redis://me:hunter2@host:1/x"], ["redis://me:***@host:1/x"]),
    "URL without a name": (["redis://:hunter2@host"], ["redis://:***@host"]),
    "URL in an option": (["--url=https://a:hunter2@h"], ["--url=https://a:***@h"]),
    "URL with an at": (["http://a:hunt@er2@h/"], ["http://a:***@h/"]),
    "query": (["https://h/p?a=1&token=hunter2&b=2"], ["https://h/p?a=1&token=***&b=2"]),
    "header": (["-H", "Authorization: Bearer hunter2"], ["-H", "Authorization: Bearer ***"]),
    "basic": (["Authorization: Basic aHVudGVyMg=="], ["Authorization: Basic ***"]),
    "other header": (["X-Api-Key: hunter2"], ["X-Api-Key: ***"]),
    "JSON": (['{"api_key": "hunter2", "a": 1}'], ['{"api_key": "***", "a": 1}']),
    "program": (["-c", "login(token='hunter2', x=1)"], ["-c", "login(token='***', x=1)"]),
    "behind a word": (["-c", "export HF_TOKEN=hunter2; x"], ["-c", "export HF_TOKEN=***; x"]),
    "in an option": (["--env=TOKEN=hunter2"], ["--env=TOKEN=***"]),
    "header in an option": (["--header=X-Auth-Token: hunter2"], ["--header=X-Auth-Token: ***"]),
    "other scheme": (["Authorization: token hunter2"], ["Authorization: token ***"]),
    "no scheme": (["Authorization: hunter2"], ["Authorization: ***"]),
    "no blank": (["-H", "Authorization:Bearer hunter2"], ["-H", "Authorization:Bearer ***"]),
    "cookie": (["Cookie: session=hunter2"], ["Cookie: ***"]),
    "index": (["os.environ['HF_TOKEN'] = 'hunter2'"], ["os.environ['HF_TOKEN'] = '***'"]),
    "quotes": (["-c", "A_KEY='hunter2, and hunter3'; x"], ["-c", "A_KEY=***"]),
    "quotes in a line": (["-c", "a; API_KEY='hunter2 b' x"], ["-c", "a; API_KEY='***' x"]),
    "prefixed": (["PGPASSWORD=hunter2"], ["PGPASSWORD=***"]),
    "short": (["DB_PASS=hunter2", "--pwd", "hunter2"], ["DB_PASS=***", "--pwd", "***"]),
    "bare name": (
        ["set", "aws_secret_access_key", "hunter2"],
        ["set", "aws_secret_access_key", "***"],
    ),
    "signed URL": (["https://h/c?sv=1&sig=hunter2&se=2"], ["https://h/c?sv=1&sig=***&se=2"]),
    "bearer option": (["--bearer", "hunter2"], ["--bearer", "***"]),
    "Groq": (["gsk_abcdefgh12345678"], ["***"]),
    "OpenAI": (["x", "sk-abcdefgh12345678"], ["x", "***"]),
    "Hugging Face": (["hf_abcdefgh12345678"], ["***"]),
    "GitHub": (
        ["clone", "https://ghp_abcdefgh12345678@github.com/x"],
        ["clone", "https://***@github.com/x"],
    ),
    "AWS id": (["--id=AKIAIOSFODNN7EXAMPLE"], ["--id=***"]),
    "auth": (["--auth", "hunter2"], ["--auth", "***"]),
    "basic auth": (["--basic-auth=me:hunter2"], ["--basic-auth=***"]),
    "curl": (["curl", "-u", "me:hunter2", "h"], ["curl", "-u", "me:***", "h"]),
    "curl's long form": (["--proxy-user", "me:hunter2"], ["--proxy-user", "me:***"]),
    "curl in a line": (["sh", "-c", "curl -u me:hunter2 h"], ["sh", "-c", "curl -u me:*** h"]),
    "curl with =": (["--user=me:hunter2"], ["--user=me:***"]),
    "wandb": (["wandb", "login", "hunter2"], ["wandb", "login", "***"]),
    "wandb with options": (
        ["/bin/wandb", "login", "--relogin", "--host", "https://h", "hunter2"],
        ["/bin/wandb", "login", "--relogin", "--host", "https://h", "***"],
    ),
    "wandb in a line": (
        ["sh", "-c", "wandb login hunter2 && python train.py"],
        ["sh", "-c", "wandb login *** && python train.py"],
    ),
    "mysql": (["mysql", "-u", "me", "-phunter2", "db"], ["mysql", "-u", "me", "-p***", "db"]),
    "mysqldump in a line": (
        ["sh", "-c", "mysqldump -u me -phunter2 db; x"],
        ["sh", "-c", "mysqldump -u me -p*** db; x"],
    ),
    "sshpass": (["sshpass", "-phunter2", "ssh", "h"], ["sshpass", "-p***", "ssh", "h"]),
    "JWT": (["eyJhbGciOiJIUzI1.eyJzdWIiOiIx.SflKxwRJ"], ["***"]),
}

PLAIN = [
    ["python", "-m", "vllm.entrypoints.api_server", "--model", "org/model-7b"],
    ["--tokenizer=org/model", "--tokenizer-mode", "auto", "--max-num-batched-tokens", "8192"],
    ["--ssl-keyfile", "/etc/x.pem", "--keep=3", "--monkey=1", "--keyboard", "x"],
    ["torchrun", "--nproc-per-node=8", "--rdzv-endpoint=host:29500", "train.py"],
    ["http://host:8000/v1", "tcp://[::1]:99", "user@host", "git@github.com:x/y", "a@b:c"],
    ["task-abcdefgh12345678", "half_precision12345", "mask-sk1", "hf_transfer"],
    ["PWD=/home/me", "OLDPWD=/x", "--pass-through", "--path", "x", "--sig=x"],
    ["http://h/p?signed=1&design=2", "token_ids", "all_keys_first"],
    ["train", "--recipe", "basic training", "the key to it"],
    ["docker", "run", "-u", "1000:1000", "-p8080:80", "image"],
    ["python", "-u", "train.py", "-p4", "-u", "host:29500", "--user", "me"],
    ["--auth-type", "basic", "--no-auth", "train.py", "--authors", "x"],
    ["wandb", "sync", "run-1"], ["login", "node-1"], ["sh", "-c", "wandb sync x; ssh -p22 h"],
    ["", "-", "--", "=", "x=", "=x", "\udcff\udc80", "a" * 100],
]  # fmt: skip


@pytest.mark.parametrize("form", SECRETS)
def test_known_forms_are_left_out(form: str) -> None:
    words, expected = SECRETS[form]

    assert redact_words(words) == expected


@pytest.mark.parametrize("words", PLAIN, ids=str)
def test_everything_else_stays(words: list[str]) -> None:
    assert redact_words(words) == words


def test_a_line_of_a_whole_command(tmp_path: Path) -> None:
    output = redact_text("server --api-key hunter2 --token=hunter3 --port 80 HF_TOKEN=hunter4")

    assert output == "server --api-key *** --token=*** --port 80 HF_TOKEN=***"


@pytest.mark.parametrize(
    "letter",
    ["a", "a-", "://", "=", "k:", "key=", "Bearer ", "--key ", "-u ", "wandb login ", "mysql -p"],
)
def test_long_words_take_no_longer(letter: str) -> None:
    # Far beyond what a quadratic search comes through within a test's time.
    word = letter * (400_000 // len(letter))

    redact_words([word, *[letter] * 1000])
    redact_text(word)


RECORDS = """
import sys
from tests.support.rings import post, tracer_in
tracer = tracer_in(sys.argv[1])
post(tracer, tracer.communicator("k"), 1)
"""


def test_no_ring_holds_a_secret(rings: Path) -> None:
    filling = ["x" * 195 + " sk-hunter2hunter2"]
    done = run_program(
        RECORDS, rings, "--api-key=hunter2", "--token", "hunter2", "PW_TOKEN=hunter2",
        "http://a:hunter2@b", *filling,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    (ring,) = rings.glob("*.ring")
    data = ring.read_bytes()
    assert b"hunter2" not in data
    assert b"--api-key=***" in data


def test_no_ring_holds_a_secret_of_the_error_that_ended_it(rings: Path) -> None:
    failing = f"{RECORDS}raise RuntimeError('no answer from http://a:hunter2@b')\n"
    done = run_program(failing, rings)

    assert done.returncode == 1
    (ring,) = rings.glob("*.ring")
    data = ring.read_bytes()
    assert b"hunter2" not in data
    assert b"no answer from http://a:***@b" in data


def test_what_attach_keeps_of_a_command_line_holds_none() -> None:
    program = "import sys; print(flush=True); sys.stdin.read()"
    words = ["--api-key=hunter2", "--token", "hunter2", "--port", "80"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = describe(process.pid)
        process.communicate()

    assert "hunter2" not in found.title
    assert found.title.endswith("--api-key=*** --token *** --port 80")


def test_what_attach_keeps_of_an_environment_holds_none() -> None:
    program = "print(flush=True); import sys; sys.stdin.read()"
    environment = {
        "NCCL_NET_URL": "http://a:hunter2@b",
        "VLLM_X": "hf_abcdefgh12345678",
        "RANK": "3",
    }
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = describe(process.pid)
        process.communicate()

    assert dict(found.environment) == {
        "NCCL_NET_URL": "http://a:***@b",
        "VLLM_X": "***",
        "RANK": "3",
    }
