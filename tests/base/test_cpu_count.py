"""How many threads there are follows the user, then what the system leaves the process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sardonyx.base import cpu_count
from sardonyx.base.cpu_count import one_a_core, quota, thread_count
from sardonyx.errors import OptionError


@pytest.fixture(autouse=True)
def eight_cores_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SARDONYX_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cpu_count, "allowed", lambda: set(range(8)))
    monkeypatch.setattr(cpu_count, "one_a_core", lambda actual: actual)
    monkeypatch.setattr(cpu_count, "quota", lambda: None)


def test_the_first_that_says_something_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert thread_count() == 8
    monkeypatch.setattr(cpu_count, "quota", lambda: 3)
    assert thread_count() == 3
    monkeypatch.setattr(cpu_count, "quota", lambda: 30)
    assert thread_count() == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")
    assert thread_count() == 5
    monkeypatch.setenv("SARDONYX_THREADS", "6")
    assert thread_count() == 6
    assert thread_count(7) == 7


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_numbers_that_are_none(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    with caplog.at_level(logging.WARNING):
        assert thread_count() == 8
    assert "OMP_NUM_THREADS" in caplog.text
    monkeypatch.setenv("SARDONYX_THREADS", value)
    with pytest.raises(OptionError, match="SARDONYX_THREADS"):
        thread_count()
    with pytest.raises(OptionError, match="threads"):
        thread_count(-1)


def test_empty_settings_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.setenv("SARDONYX_THREADS", "")
    assert thread_count() == 8


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not place processes")
def test_affinity_is_followed() -> None:
    script = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from sardonyx.base.cpu_count import thread_count
print(thread_count())
"""
    environment = {k: v for k, v in os.environ.items() if k not in ("OMP_NUM_THREADS", "SARDONYX_THREADS")}
    actual = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert actual.stdout.strip() == "1"


def test_processors_of_one_core_count_once(tmp_path: Path) -> None:
    for number, siblings in {0: "0,4", 1: "1,5", 2: "2-3", 3: "2-3", 4: "0,4", 5: "1,5"}.items():
        topology = tmp_path / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{siblings}\n")
    assert one_a_core({0, 1, 2, 3, 4, 5}, tmp_path) == {0, 1, 2}
    assert one_a_core({3, 4, 5}, tmp_path) == {3, 4, 5}
    assert one_a_core({7, 8}, tmp_path) == {7, 8}, "of which the system says nothing"


def system(root: Path, groups: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = "4:memory:/a\n3:cpu,cpuacct:/docker/x\n1:name=systemd:/a\n0::/\n"


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/a/b\n", {"a/b/cpu.max": "250000 100000\n"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "200000 100000\n"}, 2),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "150000 100000\n"}, 2),
        ("0::/../elsewhere\n", {"cpu.max": "10000 100000\n"}, 1),
        (
            V1,
            {"cpu,cpuacct/docker/x/cpu.cfs_quota_us": "300000", "cpu,cpuacct/docker/x/cpu.cfs_period_us": "100000"},
            3,
        ),
        (V1, {"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        (V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ("2:cpu:/\n1:cpuset:/\n", {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
    ],
)
def test_shares_of_time(tmp_path: Path, groups: str, files: dict[str, str], expected: int | None) -> None:
    assert quota(system(tmp_path, groups, files)) == expected


def test_a_system_without_control_groups(tmp_path: Path) -> None:
    assert quota(tmp_path) is None
