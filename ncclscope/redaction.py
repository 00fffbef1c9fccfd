"""Redact secrets in command lines before they are recorded.

Only known forms are redacted: values of options and variables with telling names (``--api-key``,
``HF_TOKEN=``), passwords in URLs, bearer tokens, keys with known prefixes, and what curl, mysql,
sshpass and ``wandb login`` take. A secret in any other form remains, so it is better not to put
secrets on a command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

REDACTED = "***"

_NAMES = re.compile(
    r"(?:api|access|secret|auth)?(?:keys?|token)|[a-z]*(?:secrets?|passwords?|passwd|passphrase)|"
    r"sshpass|credentials?|authorization|bearer|cookies?",
    re.IGNORECASE,
)
"""Parts of names of secrets; not ``tokens``, as in ``--max-num-batched-tokens``."""
_LAST_NAMES = ("pass", "pwd", "pat")
"""Last parts of names of secrets, as in ``DB_PASS``; ``PWD`` alone is a directory."""
_SIGNATURES = ("sig", "signature", "x-amz-signature", "x-goog-signature")
"""Parameters of URLs that grant access."""
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
"""Parts of a name, as in ``api-key``, ``HF_TOKEN`` and ``apiKey``."""
_OPTION = re.compile(r"--?[A-Za-z][\w.-]*")
_ASSIGNMENT = re.compile(r"([-+]*[A-Za-z_][\w.-]*)=(.+)", re.DOTALL)
_PASSWORD = re.compile(r"(?<=://)([^\s/?#:@]*):[^\s/?#]+(?=@)")
_SCHEME = re.compile(
    r"(\bBearer\s+|[:=]\s*(?:Basic|Token|Api-?Key|Digest|Negotiate)\s+)[\w.~+/=-]+", re.IGNORECASE
)
_NAMED = re.compile(
    # A name begins only after a character that no name contains, for linear time.
    r"""(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]*)
        (?P<between>["']?\]?\s?[=:]\s?["']?|\s(?!-))
        (?=(?!(?:Bearer|Basic|Token|Api-?Key|Digest|Negotiate)\s)[^\s"'&,;)}\]])""",
    re.VERBOSE | re.IGNORECASE,
)
_VALUE = re.compile(r"""[^\s"'&,;)}\]]+""")
_LONGEST_QUOTED = 1 << 12
_AUTH = re.compile(r"--?(?:(?:basic|http|proxy|registry)[-_])?auth", re.IGNORECASE)
"""Options whose value is a secret; not ``--auth-type`` or ``--no-auth``."""
_USER = re.compile(r"-[uU]|--(?:proxy-)?user")
"""Options of curl whose value is a name, a colon and a password."""
_NAME_AND_PASSWORD = re.compile(r"([^\s/:@]+):(?!//|[0-9]+$)\S+")
"""Not a user id and a group id, nor a host and a port."""
_USER_IN_LINE = re.compile(
    rf"((?<!\S)(?:{_USER.pattern})(?:\s+|=)[\"']?){_NAME_AND_PASSWORD.pattern}"
)
_LOGIN = re.compile(r"((?<![\w-])wandb\s+login)((?:\s+[^\s;&|]+)+)")
_LOGIN_KEY = re.compile(r"(?<=\s)(?!-|\S*://)\S+")
_GLUED = re.compile(r"(?:mysql|mariadb)[a-z-]*|sshpass")
"""Programs that take a password in the same word as ``-p``."""
_GLUED_IN_LINE = re.compile(
    rf"((?<![\w-])(?:{_GLUED.pattern})\s[^;&|\n]{{0,200}}?(?<=\s)-p)[^\s;&|]+"
)
_BARE_NAME = re.compile(r"(?:[A-Za-z]+_)+(?:key|token|secret|password)", re.IGNORECASE)
"""A name without dashes, as in ``aws configure set aws_secret_access_key X``."""
_KNOWN = re.compile(
    r"""(?<![A-Za-z0-9_-])(?:
        sk-[\w-]{8,}
      | hf_(?:[A-Za-z]*[0-9][A-Za-z0-9]{7,}|[A-Za-z0-9]{16,})
      | gh[pousr]_\w{8,} | github_pat_\w{8,} | glpat-[\w-]{8,}
      | (?:AKIA|ASIA)[A-Z0-9]{12,} | AIza[\w-]{20,}
      | xox[abeoprs]-[\w-]{8,} | nvapi-[\w-]{8,} | npm_\w{16,} | pypi-[\w-]{16,}
      | gsk_\w{16,} | xai-[\w-]{16,} | r8_\w{16,} | ya29\.[\w-]{8,}
      | wandb_v\d_\w{16,} | lsv2_\w{16,} | SG\.[\w-]{16,}\.[\w-]{16,} | dop_v\d_\w{16,}
      | eyJ[\w-]{8,}\.[\w.-]+
    )""",
    re.VERBOSE,
)


def redact_words(words: Iterable[str]) -> list[str]:
    """Return the arguments of a command line with secrets replaced by ``***``."""
    found: list[str] = []
    follows = first = glued = login = False
    before = ""
    for word in words:
        program = word.rpartition("/")[2]
        glued = glued or bool(_GLUED.fullmatch(program))
        login = login or (before == "wandb" and word == "login")
        if glued and re.match(r"-p.", word):
            follows = False
            found.append(f"-p{REDACTED}")
        elif word.startswith("-"):
            follows = first = bool(_OPTION.fullmatch(word)) and _is_secret(word)
            found.append(_redact_word(word))
        elif _USER.fullmatch(before) and (named := _NAME_AND_PASSWORD.fullmatch(word)):
            found.append(f"{named[1]}:{REDACTED}")
        elif login and word != "login" and "://" not in word:
            found.append(REDACTED)
        elif follows and (first or not _is_place(word)):
            # Some options take several keys. A file or a model ends the list.
            first = False
            found.append(REDACTED)
        else:
            follows = first = bool(_BARE_NAME.fullmatch(word))
            found.append(_redact_word(word))
        before = word if word.startswith("-") else program
    return found


def redact_text(text: str) -> str:
    """Return a text with secrets replaced by ``***``."""
    text = _PASSWORD.sub(rf"\1:{REDACTED}", text)
    text = _SCHEME.sub(rf"\1{REDACTED}", text)
    text = _redact_named(text)
    text = _USER_IN_LINE.sub(rf"\1\2:{REDACTED}", text)
    text = _GLUED_IN_LINE.sub(rf"\1{REDACTED}", text)
    text = _LOGIN.sub(lambda found: found[1] + _LOGIN_KEY.sub(REDACTED, found[2]), text)
    return _KNOWN.sub(REDACTED, text)


def _redact_word(word: str) -> str:
    # Redact the whole value.
    assigned = _ASSIGNMENT.fullmatch(word)
    if assigned and _is_secret(assigned[1]):
        return f"{assigned[1]}={REDACTED}"
    return redact_text(word)


def _redact_named(text: str) -> str:
    """Redact the values that follow names of secrets."""
    parts: list[str] = []
    done = position = 0
    while match := _NAMED.search(text, position):
        # The value of another name may begin with a name: `env HF_TOKEN=X`.
        position = match.end()
        name, between = match["name"], match["between"]
        secret = _is_secret(name) or (
            text[match.start() - 1 : match.start()] in ("?", "&") and name.lower() in _SIGNATURES
        )
        # After a blank, only an option has a value: "the key to it" is not a secret.
        if not secret or (between.isspace() and not name.startswith("-")):
            continue
        parts += [text[done:position], REDACTED]
        done = position = _end_of_value(text, position, between[-1:])
    return "".join(parts) + text[done:]


def _end_of_value(text: str, start: int, quote: str) -> int:
    """Return where a value ends: at its closing quote, if it has one."""
    if quote in ("'", '"'):
        end = text.find(quote, start, start + _LONGEST_QUOTED)
        if end >= 0:
            return end
    value = _VALUE.match(text, start)
    return value.end() if value else start


def _is_secret(name: str) -> bool:
    parts = _PART.findall(name)
    if any(map(_NAMES.fullmatch, parts)) or _AUTH.fullmatch(name):
        return True
    # Only of options and of names with several parts: PWD is a directory.
    several = len(parts) > 1 or name.startswith("-")
    return several and bool(parts) and parts[-1].lower() in _LAST_NAMES


def _is_place(word: str) -> bool:
    return "/" in word or "." in word
