"""What git answers does not depend on the user's settings, nor on the language of the messages."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pytest_torchlens.records.git import GitError
from pytest_torchlens.records.git import Repository

SETTINGS = """
[color]
    ui = always
    diff = always
[core]
    quotePath = true
[diff]
    external = false
    renames = false
    relative = true
    ignoreSubmodules = all
[format]
    pretty = fuller
[i18n]
    logOutputEncoding = UTF-16
[log]
    abbrevCommit = true
    date = relative
    decorate = full
    follow = false
    showRoot = false
    showSignature = true
"""
GPG = """#!/bin/sh
cat > /dev/null # git fails if its pipe ends before it has written
echo '[GNUPG:] SIG_CREATED x' >&2
printf -- '-----BEGIN PGP SIGNATURE-----\\n\\nx\\n-----END PGP SIGNATURE-----\\n'
"""


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "someone")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "settings"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    (tmp_path / "settings").touch()
    folder = tmp_path / "project"
    (folder / "zoo").mkdir(parents=True)
    monkeypatch.chdir(folder)
    git("init", "--quiet", "--initial-branch=main")
    return folder


@pytest.mark.skipif(os.name == "nt", reason="the program that signs is a shell script")
def test_a_files_versions_are_the_same_under_any_settings(repository: Path, tmp_path: Path):
    gpg = program(tmp_path / "gpg", GPG)
    file = repository / "zoo" / "net é.json"
    file.write_text("one\n" * 20)
    git("add", ".")
    git("-c", f"gpg.program={gpg}", "commit", "--quiet", "--gpg-sign=x", "--message=première")
    git("mv", "zoo/net é.json", "zoo/réseau.json")
    git("commit", "--quiet", "--message=renamed")
    found = Repository.of(repository / "zoo")
    before = list(found.versions(repository / "zoo" / "réseau.json"))
    described = found.run("show", "--stat", "--format=%h %s", "HEAD~1")
    assert [version.subject for version in before] == ["renamed", "première"]
    (tmp_path / "settings").write_text(f"{SETTINGS}[gpg]\n    program = {gpg}\n")
    assert list(found.versions(repository / "zoo" / "réseau.json")) == before
    assert found.run("show", "--stat", "--format=%h %s", "HEAD~1").split()[1:] == described.split()[1:]
    (repository / "zoo" / "réseau.json").write_text("two\n")
    assert found.changed_since("HEAD") == {"zoo/réseau.json"}
    assert found.tracked() == {"zoo/réseau.json"}


def test_a_submodule_that_is_to_be_ignored_changes_all_the_same(repository: Path):
    git("init", "--quiet", "sub")
    (repository / "sub" / "code.py").write_text("one = 1\n")
    git("-C", "sub", "add", ".")
    git("-C", "sub", "commit", "--quiet", "--message=one")
    (repository / ".gitmodules").write_text('[submodule "sub"]\n\tpath = sub\n\turl = ./sub\n\tignore = all\n')
    git("add", "--force", "sub", ".gitmodules")
    git("commit", "--quiet", "--message=with a submodule")
    found = Repository.of(repository)
    assert found.changed_since("HEAD") == set()
    (repository / "sub" / "code.py").write_text("one = 2\n")
    assert found.changed_since("HEAD") == {"sub"}


@pytest.mark.skipif(os.name == "nt", reason="the program is a shell script")
def test_a_folder_outside_is_told_in_any_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    french = 'if [ "$LC_ALL" = C ]; then echo "fatal: not a git repository"; else echo "fatal: ni ceci"; fi >&2\n'
    program(tmp_path / "bin" / "git", f"#!/bin/sh\n{french}exit 128\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("LC_ALL", "fr_FR.UTF-8")
    with pytest.raises(GitError, match="is not in a checkout of a git repository"):
        Repository.of(tmp_path)
