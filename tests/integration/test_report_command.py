"""`ncclscope report`: one file, complete in itself, and nothing in it that came to life."""

from __future__ import annotations

import base64
import gzip
import hashlib
import html.parser
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ncclscope.engine.verdict import diagnose
from ncclscope.model import Run
from ncclscope.model.device import DeviceProgress
from ncclscope.readers import open_run
from ncclscope.render.html.page import render_html
from tests.support import fork_server
from tests.support.cluster import Cluster
from tests.support.dumps import Job, history
from tests.support.snapshots import DATA

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'\u202e{{7331*7331}}"


def report(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ncclscope", "report", *map(str, arguments)]
    return fork_server.run(
        command, capture_output=True, text=True, check=False, timeout=60, cwd=cwd
    )


class Page(html.parser.HTMLParser):
    """Content of a page: elements, their references, and the texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "action", "data", "poster", "srcset", "xlink:href"):
                self.references.append(value or "")
            if name.startswith("on") or name == "style":
                self.handlers.append(name)

    def handle_data(self, data: str) -> None:
        inside = self.names[-1] if self.names else ""
        (self.scripts if inside in ("script", "style") else self.texts).append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def data_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found is not None
    value = json.loads(found[1])
    assert isinstance(value, dict)
    return value


@pytest.fixture
def diverged(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path / "diverged", 4)
    cluster.history()
    cluster.post([0, 1, 2], "tp:0", done=False)
    cluster.post([3], "tp:0", "all_gather", done=False)
    return cluster


def page_of(run: Run, **options: bool) -> str:
    return render_html(diagnose(run), **options)


# --- the command ---------------------------------------------------------------------------------


def test_the_status_is_that_of_diagnose(diverged: Cluster, tmp_path: Path) -> None:
    done = report(diverged.directory, "-o", tmp_path / "hang.html")

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"ncclscope: diverged, see {tmp_path / 'hang.html'}")
    assert (tmp_path / "hang.html").read_text().startswith("<!doctype html>")
    calm = Cluster(tmp_path / "calm", 2)
    calm.history()
    assert report(calm.directory, cwd=tmp_path).returncode == 0
    assert (
        "All ranks agree in their recorded calls"
        in (tmp_path / "ncclscope-report.html").read_text()
    )


def test_it_goes_to_stdout_where_that_is_wanted(diverged: Cluster) -> None:
    done = report(diverged.directory, "-o", "-")

    assert done.returncode == 1
    assert done.stdout.startswith("<!doctype html>")
    assert done.stdout.rstrip().endswith("</html>")
    assert done.stderr == ""


def test_only_a_report_is_written_over(diverged: Cluster, tmp_path: Path) -> None:
    target = tmp_path / "hang.html"
    assert report(diverged.directory, "-o", target).returncode == 1
    first = target.read_bytes()
    assert report(diverged.directory, "-o", target).returncode == 1
    assert target.read_bytes() == first
    ring = next(diverged.directory.glob("*.ring"))
    before = ring.read_bytes()

    done = report(diverged.directory, "-o", ring)

    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"ncclscope: {ring} exists and is not a report; name another file with -o"
    ]
    assert ring.read_bytes() == before


@pytest.mark.parametrize("target", ["missing/hang.html", "."])
def test_where_nothing_can_be_written_one_line_says_so(
    diverged: Cluster, tmp_path: Path, target: str
) -> None:
    done = report(diverged.directory, "-o", tmp_path / target)

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("ncclscope: ")


# --- the page ------------------------------------------------------------------------------------


def test_the_verdict_comes_first_in_two_sentences(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history()
    cluster.post([0, 1, 2], "tp:0", done=False)
    verdict = cluster.verdict()
    assert verdict.cause is not None

    page = render_html(verdict)

    lead = page.index('class="lead"')
    second = page.index('class="second"')
    assert page.index("<main") < lead < second < page.index("<h2")
    assert f">{verdict.cause.summary}</p>" in page[lead:second]
    sure = {
        "certain": "This is certain, by the records alone",
        "likely": "This is likely, not certain: a part of it is inferred",
    }[verdict.cause.confidence]
    assert f'class="second">{sure}; there was no progress for 60 s.</p>' in page


def test_the_last_call_of_a_rank_that_never_came_is_not_taken_for_the_call(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    cluster.history()
    cluster.history("dp:0", members=(2, 3))
    cluster.post([0, 1, 2], "tp:0", done=False)

    page = page_of(cluster.run())

    assert "<dt>Rank 3, last call</dt>" in page
    assert "<dt>Its peers</dt>" in page


def test_where_ranks_are_on_their_gpus_is_on_the_page(diverged: Cluster) -> None:
    run = diverged.run()
    assert 'id="device"' not in page_of(run)

    key = next(iter(run.ranks[0].logs))
    calls = run.ranks[0].logs[key].calls
    pending_calls = [DeviceProgress(calls, finished=calls)] * (len(run.ranks) - 1)
    pending_calls.append(
        DeviceProgress(calls, finished=calls - 1, entered=calls, handed_over=calls)
    )
    ranks = [
        replace(rank, device={key: pending})
        for rank, pending in zip(run.ranks, pending_calls, strict=True)
    ]
    page = page_of(replace(run, ranks=tuple(ranks)))

    part = page[page.index('id="device"') : page.index("</section>", page.index('id="device"'))]
    rows = re.findall(r"<tr><th[^>]*>(.*?)</th>.*?<td data-label=\"where\">(.*?)</td>", part)
    assert [row[0] for row in rows] == [str(len(ranks) - 1), f"0-{len(ranks) - 2}"]
    assert rows[0][1].startswith(f"in call {calls}")
    assert rows[1][1] == "all finished"


def test_it_refers_to_nothing_outside_of_itself(diverged: Cluster) -> None:
    text = page_of(diverged.run())
    page = Page(text)

    assert {one for one in page.references if not one.startswith("#")} == {"data:,"}
    assert not {"iframe", "img", "object", "embed", "base"} & set(page.names)
    assert page.handlers == []
    assert "@import" not in text
    assert re.findall(r"\burl\((?!#)", text) == []
    # Names of XML dialects are no addresses that anybody asks.
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}


def test_its_policy_allows_its_own_script_and_no_other(diverged: Cluster) -> None:
    text = page_of(diverged.run())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    allowed = policy[1].replace("&#39;", "'")
    assert "default-src 'none'" in allowed
    assert "unsafe" not in allowed
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    script = re.search(r"<script>(.*?)</script>", text, re.S)
    for kind, found in (("style-src", style), ("script-src", script)):
        assert found is not None
        digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in allowed


def test_recorded_and_inferred_are_marked_apart(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 4)
    for pair in ((0, 1), (2, 3)):
        cluster.history("tp:0", members=pair)
    for rank in cluster.everybody:
        members = (0, 1) if rank < 2 else (2, 3)
        op = "broadcast" if rank == 3 else "all_reduce"
        cluster.post([rank], "tp:0", op, members=members, done=False)
    verdict = diagnose(cluster.run())
    assert verdict.cause is not None
    assert verdict.cause.inferred

    page = render_html(verdict)

    statements = re.findall(r'<li class="is-(\w+)">.*?<span>(.*?)</span></li>', page, re.S)
    marked = [(how, Page(text).text) for how, text in statements]
    assert [text for how, text in marked if how == "recorded"] == list(verdict.cause.evidence)
    assert [text for how, text in marked if how == "inferred"] == list(verdict.cause.inferred)


def test_64_ranks_stay_below_500_kilobytes(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 64)
    replicas = [range(first, first + 4) for first in range(0, 64, 4)]
    for number in range(60):
        for ranks in replicas:
            shape = (8 + number % 7, 64)
            cluster.post(ranks, "tp:0", members=ranks, shape=shape, site=f"model.py:{number} f")
    for first in range(4):
        cluster.history("dp:0", 20, members=range(first, 64, 4))
    for ranks in replicas:
        cluster.post([r for r in ranks if r != 13], "tp:0", members=ranks, done=False)

    page = page_of(cluster.run())

    assert "rank 13" in page
    assert len(page.encode()) < 500_000
    assert len({row["rank"] for row in data_of(page)["timeline"]["rows"]}) == 64


def test_what_every_rank_posts_otherwise_does_not_fill_the_page(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 64)
    for number in range(100):
        for rank in cluster.everybody:
            cluster.post([rank], "tp:0", shape=(rank + 1, number + 1), site=f"a{rank}.py:{number}")

    assert len(page_of(cluster.run()).encode()) < 500_000


def test_equal_input_gives_an_equal_page(diverged: Cluster) -> None:
    run = diverged.run()
    assert page_of(run) == page_of(run)


def test_a_bundle_shows_stacks_and_data_sources() -> None:
    page = Page(page_of(open_run(DATA / "h200_mismatch.json"))).text

    assert "Stacks of all ranks seen" in page
    assert "train.py:9 gather_step" in page
    assert "Rank 2 is at train.py:9 gather_step (waits for the GPU)" in page
    assert "not available" in page
    assert "Calls side by side" not in page


def test_dumps_of_the_flight_recorder_make_a_page(tmp_path: Path) -> None:
    job = Job(4)
    history(job)
    job.post([0, 1, 2], "all_reduce", state="scheduled")
    job.post([3], "all_gather", state="scheduled")

    page = page_of(open_run(job.write(tmp_path / "dumps")))

    assert "all_gather" in page
    assert len(data_of(page)["alignments"][0]["columns"]) == 2


# --- texts from elsewhere ------------------------------------------------------------------------


def write_hostile(directory: Path) -> None:
    """Two ranks whose every text is an attack on a page."""
    directory.mkdir()
    for rank in range(2):
        op = "all_reduce" if rank else "broadcast"
        lines: list[dict[str, object]] = [
            {"ncclscope_trace": 1, "rank": rank, "world_size": 2, "host": EVIL, "pid": 5}
            | {"labels": {EVIL: EVIL}},
            {"comm": EVIL, "label": EVIL, "ranks": [0, 1], "backend": EVIL},
            {"call": EVIL, "comm": EVIL, "site": EVIL, "dtype": EVIL, "redop": EVIL}
            | {"t_ns": 10**18},
            {"call": op, "comm": EVIL, "site": f"</script>{EVIL}", "dtype": "float32"}
            | {"t_ns": 10**18 + 5000},
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory / f"{rank}.jsonl.gz").write_bytes(gzip.compress(text.encode()))


def test_texts_from_the_job_stay_texts(tmp_path: Path) -> None:
    write_hostile(tmp_path / "job")
    plain = Cluster(tmp_path / "plain", 2)
    plain.history()
    plain.post([0], "tp:0", done=False)
    plain.post([1], "tp:0", "all_gather", done=False)

    text = page_of(open_run(tmp_path / "job"))

    page, calm = Page(text), Page(page_of(plain.run()))
    assert set(page.names) <= {*calm.names, "details", "summary", "p", "button", "b", "ul", "li"}
    assert page.names.count("script") == 2
    assert page.handlers == []
    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert str(7331 * 7331) not in page.text  # a number that no path has in it
    assert "alert(1)" in page.text


def test_names_of_threads_and_titles_stay_texts(tmp_path: Path) -> None:
    document = json.loads((DATA / "h200_mismatch.json").read_text())
    for worker in document["workers"]:
        worker["title"] = EVIL
        for stacks in worker["stacks"]:
            for thread in stacks["threads"]:
                thread["name"] = EVIL
                for frame in thread["frames"]:
                    frame["function"] = EVIL
    (tmp_path / "attach.json").write_text(json.dumps(document))

    text = page_of(open_run(tmp_path))

    assert "&lt;script&gt;alert(1)" in text
    assert "<script>alert" not in text
    assert "<img" not in text


def test_redacted_pages_name_no_folders_and_no_command_lines(tmp_path: Path) -> None:
    bundle = tmp_path / "secret-customer" / "bundle"
    bundle.mkdir(parents=True)
    shutil.copy(DATA / "h200_mismatch.json", bundle / "attach.json")
    open_one, redacted = tmp_path / "open.html", tmp_path / "redacted.html"

    assert report(bundle, "-o", open_one).returncode == 1
    assert report(bundle, "--redact", "-o", redacted).returncode == 1

    assert "secret-customer" in open_one.read_text()
    assert "/opt/torch/.venv" in open_one.read_text()
    text = redacted.read_text()
    assert "secret-customer" not in text
    assert "/opt/torch/.venv" not in text
    assert "train.py:9 gather_step" in text


def test_folders_in_call_sites_and_notes_are_left_out_too(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "rings", 2)
    cluster.history(site="/home/customer/model.py:10 forward")
    (cluster.directory / "bad.jsonl").write_text("no trace\n")
    run = cluster.run()

    assert str(tmp_path) in page_of(run)
    redacted = page_of(run, redacted=True)
    assert "customer" not in redacted
    assert str(tmp_path) not in redacted
    assert "model.py:10 forward" in redacted
