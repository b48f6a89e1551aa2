"""A server of one's own that speaks as much of the Hugging Face Hub's API as its libraries need.

They reach it by the environment variable HF_ENDPOINT. Large files are sent and received by LFS.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from web_server import web_server

_LFS = (".safetensors", ".bin")
_KINDS = ("models", "datasets")


@dataclass
class Repository:
    """A repository with one commit."""

    files: dict[str, bytes]
    commit: str
    gated: bool = False
    private: bool = False


@dataclass
class Hub:
    """What the server has, and what it was asked.

    Attributes:
        repositories: by kind (`models` or `datasets`) and name.
        tokens: what each token may do: `write`, `read`, or `nothing` with a gated repository.
        cut: paths of files whose next answer ends in the middle.
        requests: method, path and range of each request.
    """

    repositories: dict[tuple[str, str], Repository] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    endpoint: str = ""

    def commit(self, repository: Repository, files: dict[str, bytes]) -> str:
        """Add files to a repository, by a commit of their content."""
        repository.files |= files
        digest = hashlib.sha1()
        for name, content in sorted(repository.files.items()):
            digest.update(name.encode() + hashlib.sha1(content).digest())
        repository.commit = digest.hexdigest()
        return repository.commit


@contextmanager
def hub_server(hub: Hub) -> Iterator[Hub]:
    """Serve a hub on the loopback interface."""
    handler = type("Handler", (_Handler,), {"hub": hub})
    with web_server(handler) as hub.endpoint:
        yield hub


class _RefusedError(Exception):
    def __init__(self, status: int, code: str | None, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        """Be silent."""

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        size = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(size)
        try:
            self._route(path.strip("/").split("/"), body)
        except _RefusedError as refused:
            headers = {"X-Error-Message": refused.message}
            if refused.code:
                headers["X-Error-Code"] = refused.code
            text = json.dumps({"error": refused.message}).encode()
            self._send(text, refused.status, headers)

    def _route(self, parts: list[str], body: bytes) -> None:
        right = self._right()
        match parts:
            case ["api", "whoami-v2"]:
                self._json({"type": "user", "name": "user", "auth": {}})
            case ["api", "validate-yaml"]:
                self._json({"errors": [], "warnings": []})
            case ["api", "repos", "create"]:
                self._create(right, json.loads(body))
            case ["api", kind, owner, name, *rest] if kind in _KINDS:
                self._api(kind, f"{owner}/{name}", rest, body, right)
            case ["objects", oid]:
                self.hub.objects[oid] = body
                self._send(b"")
            case ["datasets", owner, name, "resolve", commit, *path]:
                self._file("datasets", f"{owner}/{name}", commit, "/".join(path), right)
            case [owner, name, "resolve", commit, *path]:
                self._file("models", f"{owner}/{name}", commit, "/".join(path), right)
            case [_, name, "info", "lfs", "objects", "batch"] if name.endswith(".git"):
                self._may_write(right)
                self._batch(json.loads(body))
            case _:
                raise _RefusedError(404, None, "no such page")

    def _right(self) -> str | None:
        given = self.headers.get("Authorization")
        if given is None:
            return None
        right = self.hub.tokens.get(given.removeprefix("Bearer "))
        if right is None:
            raise _RefusedError(401, None, "Invalid credentials in Authorization header")
        return right

    def _may_read(self, name: str, repository: Repository, right: str | None) -> None:
        if repository.gated and right in (None, "nothing"):
            status = 403 if right else 401
            raise _RefusedError(status, "GatedRepo", f"Access to {name} is restricted")

    def _may_write(self, right: str | None) -> None:
        if right is None:
            raise _RefusedError(401, None, "Invalid username or password.")
        if right != "write":
            raise _RefusedError(403, None, "You don't have the rights to write here")

    def _found(self, kind: str, name: str, commit: str, right: str | None) -> Repository:
        repository = self.hub.repositories.get((kind, name))
        if repository is None or (repository.private and right is None):
            missing = 404 if right else 401
            raise _RefusedError(missing, "RepoNotFound", "Repository not found")
        if commit not in (repository.commit, "main"):
            raise _RefusedError(404, "RevisionNotFound", "Invalid rev id")
        return repository

    def _api(self, kind: str, name: str, rest: list[str], body: bytes, right: str | None) -> None:
        revision = rest[1] if len(rest) > 1 else "main"
        repository = self._found(kind, name, revision, right)
        match rest:
            case [] | ["revision", _]:
                self._json(_info(name, repository))
            case ["tree", _, *folder]:
                prefix = "".join(f"{part}/" for part in folder)
                self._json(_tree(repository, prefix, "recursive=true" in self.path.lower()))
            case ["auth-check"]:
                self._may_read(name, repository, right)
                self._send(b"")
            case ["paths-info", _]:
                wanted = json.loads(body)["paths"]
                entries = (entry for entry in _tree(repository, "", True))
                self._json([entry for entry in entries if entry["path"] in wanted])
            case ["preupload", _]:
                self._may_write(right)
                self._json({"files": [_mode(file["path"]) for file in json.loads(body)["files"]]})
            case ["commit", _]:
                self._may_write(right)
                self._commit(name, repository, body)
            case _:
                raise _RefusedError(404, None, "no such page")

    def _create(self, right: str | None, asked: dict[str, Any]) -> None:
        self._may_write(right)
        name = f"{asked['organization']}/{asked['name']}"
        key = ("models", name)
        if key in self.hub.repositories:
            there = {"error": "You already created it", "url": f"{self.hub.endpoint}/{name}"}
            self._send(json.dumps(there).encode(), 409)
            return
        made = Repository({}, "", private=asked.get("visibility") == "private")
        self.hub.commit(made, {".gitattributes": b"*.safetensors filter=lfs\n"})
        self.hub.repositories[key] = made
        self._json({"url": f"{self.hub.endpoint}/{name}", "name": name})

    def _batch(self, asked: dict[str, Any]) -> None:
        actions = [
            {
                **each,
                "actions": {"upload": {"href": f"{self.hub.endpoint}/objects/{each['oid']}"}},
            }
            for each in asked["objects"]
        ]
        self._json({"transfer": "basic", "objects": actions})

    def _commit(self, name: str, repository: Repository, body: bytes) -> None:
        files = {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del repository.files[value["path"]]
        commit = self.hub.commit(repository, files)
        self._json(
            {
                "commitOid": commit,
                "commitUrl": f"{self.hub.endpoint}/{name}/commit/{commit}",
                "hookOutput": "",
            }
        )

    def _file(self, kind: str, name: str, commit: str, path: str, right: str | None) -> None:
        repository = self._found(kind, name, commit, right)
        self._may_read(name, repository, right)
        content = repository.files.get(path)
        if content is None:
            raise _RefusedError(404, "EntryNotFound", "Entry not found")
        headers = {
            "X-Repo-Commit": repository.commit,
            "ETag": f'"{_oid(path, content)}"',
            "Accept-Ranges": "bytes",
        }
        status = 200
        if asked := self.headers.get("Range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            content, status = content[start : end + 1], 206
        cut = self.hub.cut.pop(path, None) if self.command == "GET" else None
        self._send(content, status, headers, cut)

    def _json(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), headers={"Content-Type": "application/json"})

    def _send(
        self,
        content: bytes,
        status: int = 200,
        headers: dict[str, str] | None = None,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:cut])
        if cut is not None:
            self.close_connection = True


def _info(name: str, repository: Repository) -> dict[str, Any]:
    return {
        "id": name,
        "sha": repository.commit,
        "private": repository.private,
        "gated": "auto" if repository.gated else False,
        "tags": [],
        "siblings": [{"rfilename": path} for path in sorted(repository.files)],
    }


def _tree(repository: Repository, prefix: str, recursive: bool) -> list[dict[str, Any]]:
    inside = [path for path in sorted(repository.files) if path.startswith(prefix)]
    if prefix and not inside:
        raise _RefusedError(404, "EntryNotFound", "Entry not found")
    names = {path: path.removeprefix(prefix).split("/") for path in inside}
    folders = {
        prefix + "/".join(parts[:depth])
        for parts in names.values()
        for depth in range(1, len(parts) if recursive else min(len(parts), 2))
    }
    files = [path for path, parts in names.items() if recursive or len(parts) == 1]
    made = [{"type": "directory", "path": path, "oid": "0" * 40} for path in sorted(folders)]
    return made + [_entry(path, repository.files[path]) for path in files]


def _entry(path: str, content: bytes) -> dict[str, Any]:
    entry = {"type": "file", "path": path, "size": len(content), "oid": _git_oid(content)}
    if path.endswith(_LFS):
        entry["lfs"] = {"oid": _oid(path, content), "size": len(content), "pointerSize": 134}
    return entry


def _mode(path: str) -> dict[str, Any]:
    mode = "lfs" if path.endswith(_LFS) else "regular"
    return {"path": path, "uploadMode": mode, "shouldIgnore": False}


def _oid(path: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if path.endswith(_LFS) else _git_oid(content)


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()
