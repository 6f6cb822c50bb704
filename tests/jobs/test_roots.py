"""Roots: how a path is stored, which folders a process may touch, and how one below them is opened."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import Fail, HoldfastError, InvalidPayload
from holdfast.jobs import roots
from holdfast.jobs.roots import LONGEST_NAME, LONGEST_PATH, VARIABLE, open_folder, whole_path
from tests.support import open_files


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The one folder that may be touched; this process stands beside it."""
    folder = tmp_path / "root"
    folder.mkdir()
    monkeypatch.setenv(VARIABLE, str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture(autouse=True)
def no_open_file_left() -> Iterator[None]:
    """Every folder that was opened on the way is closed, however it ended."""
    before = open_files()
    yield
    assert not open_files() - before


def reached(path: Path | str, *, make: bool = False) -> Path:
    """The place that open_folder leads to, as the kernel names it."""
    with open_folder(str(path), make=make) as (folder, name):
        return Path(os.readlink(f"/proc/self/fd/{folder}")) / name


def refusal(path: Path | str, *, make: bool = False) -> str:
    with pytest.raises(Fail) as caught, open_folder(str(path), make=make):
        pass
    return str(caught.value)


# How a path is stored.


@pytest.mark.parametrize(
    ("path", "stored"),
    [
        ("/a/b", "/a/b"),
        ("//a//b", "/a/b"),
        ("///a/b", "/a/b"),
        ("/a/./b", "/a/b"),
        ("/a/../b", "/b"),
        ("/../../b", "/b"),
        ("/a/..b", "/a/..b"),
        ("/a/b.", "/a/b."),
        ("/a/...", "/a/..."),
        ("/a/~", "/a/~"),
        ("/a/b\n", "/a/b\n"),
        ("/a/ä %2e\\", "/a/ä %2e\\"),
    ],
)
def test_absolute_path_is_stored_without_detours(path: str, stored: str) -> None:
    assert whole_path(path) == stored


def test_relative_path_is_stored_below_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert whole_path("a.json") == f"{tmp_path}/a.json"
    assert whole_path("./b/../a.json") == f"{tmp_path}/a.json"
    assert whole_path("../a.json") == f"{tmp_path.parent}/a.json"


def test_stored_path_stays_as_it_is_wherever_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stored = whole_path("b/../a.json")
    monkeypatch.chdir("/")
    assert whole_path(stored) == stored


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", "must not be empty"),
        ("a\0b", "contains a NUL character"),
        ("a/", "names a folder, not a file"),
        ("/", "names a folder, not a file"),
        ("//", "names a folder, not a file"),
        (".", "names a folder, not a file"),
        ("..", "names a folder, not a file"),
        ("a/.", "names a folder, not a file"),
        ("a/..", "names a folder, not a file"),
        ("~", "begins with ~, which only a shell expands; write the full path"),
        ("~/a", "begins with ~, which only a shell expands; write the full path"),
        ("~ada/a", "begins with ~, which only a shell expands; write the full path"),
        ("/a/" + "n" * (LONGEST_NAME + 1), "contains a name longer than 255 bytes"),
        ("/" + "ä" * 128 + "/a", "contains a name longer than 255 bytes"),
        ("/a" * 2048, "is longer than 4095 bytes"),
    ],
)
def test_path_that_no_file_can_have_is_refused_with_its_place(path: str, problem: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        whole_path(path, "targetPath")
    assert (caught.value.where, caught.value.problem) == ("payload.targetPath", problem)


def test_longest_name_and_longest_path_are_allowed() -> None:
    assert whole_path("/" + "n" * LONGEST_NAME)
    assert len(whole_path("/a" * 2046 + "/aa")) == LONGEST_PATH


def test_relative_path_from_a_folder_that_is_gone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(InvalidPayload, match="is relative, but the current folder no longer exists"):
        whole_path("a")
    assert whole_path("/a") == "/a"


# Which folders a process may touch.


def test_roots_are_what_the_variable_lists(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "/data::files:../beside/")
    assert roots.roots() == ["/data", f"{tmp_path}/files", f"{tmp_path.parent}/beside"]


def test_empty_variable_allows_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    assert roots.roots() == []
    assert refusal(tmp_path / "a") == (
        f"{str(tmp_path / 'a')!r} is not allowed: this worker has no file roots; set QUEUECTL_FILE_ROOTS"
    )


def test_current_folder_is_the_root_by_default(
    no_variable: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    assert roots.roots() == [str(tmp_path)]
    assert reached(tmp_path / "a") == tmp_path / "a"
    assert "outside the file roots" in refusal(tmp_path.parent / "a")


@pytest.mark.parametrize("home", ["here", "here/ada", "link", "link/ada"])
def test_folder_that_a_home_lies_in_is_no_root_by_default(
    no_variable: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str
) -> None:
    here = tmp_path / "here"
    (here / "ada").mkdir(parents=True)
    (tmp_path / "link").symlink_to(here)
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(tmp_path / home))
    assert roots.roots() == []


@pytest.mark.parametrize("home", ["/", "/usr/share", "/nowhere"])
def test_folder_of_all_folders_is_no_root_by_default(
    no_variable: None, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", home)
    assert roots.roots() == []


def test_home_may_be_a_root_if_somebody_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert reached(tmp_path / "a") == tmp_path / "a"


def test_folder_of_all_folders_may_be_a_root_if_somebody_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, "/")
    assert reached(tmp_path / "a") == tmp_path / "a"


# How a folder below them is opened.


def test_file_below_any_of_several_roots_is_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for folder in (first, second, third):
        folder.mkdir()
    monkeypatch.setenv(VARIABLE, os.pathsep.join([str(first), str(second)]))
    assert reached(first / "a") == first / "a"
    assert reached(second / "a") == second / "a"
    assert refusal(third / "a") == (
        f"{str(third / 'a')!r} is outside the file roots, {first}:{second} (QUEUECTL_FILE_ROOTS)"
    )


@pytest.mark.parametrize("backwards", [True, False])
def test_root_behind_a_link_of_another_root_is_reached_in_any_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backwards: bool
) -> None:
    (tmp_path / "outer").mkdir()
    (tmp_path / "inner").mkdir()
    (tmp_path / "outer/link").symlink_to(tmp_path / "inner")
    named = [str(tmp_path / "outer"), str(tmp_path / "outer/link")]
    monkeypatch.setenv(VARIABLE, os.pathsep.join(reversed(named) if backwards else named))
    assert reached(tmp_path / "outer/link/a") == tmp_path / "inner/a"
    assert reached(tmp_path / "outer/a") == tmp_path / "outer/a"


def test_relative_root_is_below_the_current_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Path
) -> None:
    monkeypatch.setenv(VARIABLE, "root")
    assert reached(root / "a") == root / "a"
    assert reached("root/a") == root / "a"


@pytest.mark.parametrize("named", ["real", "link"])
@pytest.mark.parametrize("asked", ["real", "link"])
def test_root_reached_by_a_link_has_both_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, named: str, asked: str
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setenv(VARIABLE, str(tmp_path / named))
    if (named, asked) == ("real", "link"):
        assert "outside the file roots" in refusal(tmp_path / asked / "a")
    else:
        assert reached(tmp_path / asked / "a") == tmp_path / "real" / "a"


def test_folder_whose_name_begins_like_a_root_is_outside(root: Path) -> None:
    (root.parent / "root2").mkdir()
    assert "outside the file roots" in refusal(root.parent / "root2" / "a")
    assert "outside the file roots" in refusal(root)


def test_missing_root_is_an_error_that_may_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "unmounted"))
    with (
        pytest.raises(HoldfastError, match=r"the file root .*/unmounted does not exist"),
        open_folder(str(tmp_path / "unmounted" / "a"), make=True),
    ):
        pass
    assert not (tmp_path / "unmounted").exists()


def test_missing_folders_are_made_only_if_asked(root: Path) -> None:
    with pytest.raises(FileNotFoundError), open_folder(str(root / "a/b/c")):
        pass
    assert list(root.iterdir()) == []
    assert reached(root / "a/b/c", make=True) == root / "a/b/c"
    assert reached(root / "a/b/c", make=True) == root / "a/b/c"
    assert list(root.rglob("*")) == [root / "a", root / "a/b"]


def test_made_folder_is_brought_to_disk_with_its_name(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    fsync = os.fsync

    def record(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        fsync(file)

    monkeypatch.setattr(os, "fsync", record)
    reached(root / "a/b/c", make=True)
    assert synced == [str(root), str(root / "a")]
    reached(root / "a/b/c", make=True)
    assert synced == [str(root), str(root / "a")]
    with open_folder(str(root / "a/b/c"), make=True, again=True):  # the first may have died before it
        assert synced == 2 * [str(root), str(root / "a")]


@pytest.mark.parametrize("make", [True, False])
@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("outside", "link/a"),
        ("outside", "link/b/a"),
        ("root/inner", "link/a"),
        ("nowhere", "link/a"),
        ("root/link", "link/a"),
        ("root/file", "link/a"),
    ],
)
def test_link_on_the_way_is_refused_wherever_it_leads(
    root: Path, tmp_path: Path, target: str, path: str, make: bool
) -> None:
    (tmp_path / "outside").mkdir()
    (root / "inner").mkdir()
    (root / "file").touch()
    (root / "link").symlink_to(tmp_path / target)
    assert refusal(root / path, make=make).endswith(" goes through 'link', which is a symbolic link")
    assert list((tmp_path / "outside").iterdir()) == []
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("make", [True, False])
def test_what_is_no_folder_on_the_way_is_refused(root: Path, make: bool) -> None:
    (root / "file").touch()
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))
    assert refusal(root / "file/a", make=make).endswith(" goes through 'file', which is a file")
    assert refusal(root / "pipe/a", make=make).endswith("'pipe', which is a device or socket")
    assert refusal(root / "socket/a", make=make).endswith("'socket', which is a device or socket")


def test_what_has_the_name_is_nothing_a_file_or_refused(root: Path) -> None:
    (root / "file").write_text("four")
    (root / "folder").mkdir()
    (root / "link").symlink_to("file")
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "pipe")

    def look(name: str) -> os.stat_result | None:
        with open_folder(str(root / name)) as (folder, last):
            return roots.refuse_unless_file(folder, last, name)

    assert look("nothing") is None
    found = look("file")
    assert found is not None
    assert (found.st_size, stat.S_ISREG(found.st_mode)) == (4, True)
    for name, kind in {
        "folder": "a folder",
        "link": "a symbolic link",
        "dangling": "a symbolic link",
        "pipe": "a device or socket",
    }.items():
        with pytest.raises(Fail, match=f"^'{name}' is {kind}, not a file$"):
            look(name)


def test_folder_stays_open_where_it_was_when_its_name_goes_elsewhere(root: Path, tmp_path: Path) -> None:
    (root / "a").mkdir()
    (tmp_path / "outside").mkdir()
    with open_folder(str(root / "a/file")) as (folder, name):
        (root / "a").rename(root / "moved")
        (root / "a").symlink_to(tmp_path / "outside")
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=folder))
    assert (root / "moved/file").exists()
    assert list((tmp_path / "outside").iterdir()) == []
