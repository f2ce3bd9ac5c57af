"""A small Hugging Face hub on loopback: as much of its HTTP interface as `huggingface_hub` uses to load and upload."""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Hub:
    """What the server knows, and what it was asked.

    Attributes:
        repositories: `"org/name"` -> `{revision: folder}`.
        private: Repositories that need the token.
        moved: Old name -> new name of a repository.
        cut: Names of files whose download breaks off in the middle, and again when it is resumed.
        cut_once: The same, but the rest comes when it is asked for.
        far: Names of files that lie on another host, as large ones do.
        storage: Folder for repositories that are made.
        full: Whether large files are refused.
        blobs: What was sent as large files, by its checksum.
        requests: `(method, path, Range header)` of each request.
    """

    token = "hf_open_sesame"

    def __init__(self):
        self.repositories: dict[str, dict[str, Path]] = {}
        self.private: set[str] = set()
        self.moved: dict[str, str] = {}
        self.cut: set[str] = set()
        self.cut_once: set[str] = set()
        self.far: set[str] = set()
        self.storage: Path | None = None
        self.full = False
        self.blobs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        self.url = ""

    def fetched(self):
        """Return the names of the files that were sent, whole or in part."""
        return {path.rsplit("/", 1)[-1] for method, path, _ in self.requests if method == "GET" and "/api/" not in path}

    @contextmanager
    def serve(self):
        hub = self
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self.url
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def commit(folder):
    """Return a name for what a folder holds, as a commit has one."""
    digest = hashlib.sha1()
    for path in files_of(folder):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def do_POST(self):
        self.answer_write()

    def do_PUT(self):
        self.answer_write()

    def answer(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        for old, new in self.hub.moved.items():
            if f"/{old}/" in f"{path}/":
                return self.reply(307, {"Location": self.path.replace(old, new)})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            return self.answer_api(match[1], "revision", "main")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", path):
            return self.answer_api(*match.groups())
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.answer_file(*match.groups())
        if match := re.fullmatch(r"/cdn/([^/]+/[^/]+)/([^/]+)/(.+)", path):
            return self.send_file(self.folder(*match.groups()[:2]) / match[3], {})
        return self.reply(404, {})

    def folder(self, repository, revision):
        """Return the folder of a revision's name or commit, or None after sending an error."""
        open_to_all = repository in self.hub.repositories and repository not in self.hub.private
        if not open_to_all and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self.reply(401, {"X-Error-Message": "Invalid username or password."})
        if repository not in self.hub.repositories:
            return self.reply(404, {"X-Error-Code": "RepoNotFound"})
        for name, folder in self.hub.repositories[repository].items():
            if revision in (name, commit(folder)):
                return folder
        return self.reply(404, {"X-Error-Code": "RevisionNotFound"})

    def answer_api(self, repository, kind, revision):
        folder = self.folder(repository, revision)
        if folder is None:
            return None
        files = [
            {
                "type": "file",
                "path": path.relative_to(folder).as_posix(),
                "size": path.stat().st_size,
                "oid": etag(path)[:40],
            }
            for path in files_of(folder)
        ]
        info = {
            "id": repository,
            "sha": commit(folder),
            "private": repository in self.hub.private,
            "siblings": [{"rfilename": file["path"]} for file in files],
        }
        return self.reply_json(files if kind == "tree" else info)

    def answer_file(self, repository, revision, name):
        folder = self.folder(repository, revision)
        if folder is None:
            return None
        path = folder / name
        headers = {"X-Repo-Commit": commit(folder)}
        if not path.is_file():
            return self.reply(404, {**headers, "X-Error-Code": "EntryNotFound"})
        if name in self.hub.far:
            port = self.server.server_address[1]
            return self.reply(
                302,
                {
                    **headers,
                    "X-Linked-Size": str(path.stat().st_size),
                    "X-Linked-ETag": f'"{etag(path)}"',
                    "Location": f"http://localhost:{port}/cdn/{repository}/{revision}/{name}",
                },
            )
        return self.send_file(path, headers)

    def send_file(self, path, headers):
        content, start = path.read_bytes(), 0
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            start = int(match[1])
            headers = {**headers, "Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        headers = {**headers, "ETag": f'"{etag(path)}"', "Accept-Ranges": "bytes"}
        end = len(content)
        if self.command == "GET" and path.name in self.hub.cut | self.hub.cut_once:
            end = max(start, len(content) // 2) if path.name in self.hub.cut or not start else end
        return self.reply(206 if start else 200, headers, content[start:], end - start)

    def answer_write(self):
        """Answer what an upload asks for: a repository, how to send each file, the large ones, and a commit."""
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, None))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if match := re.fullmatch(r"/lfs/(\w+)", path):
            if self.hub.full:
                return self.reply(400, {})
            self.hub.blobs[match[1]] = body
            return self.reply(200, {})
        if path == "/api/validate-yaml":
            bad = "license: mine" in json.loads(body)["content"]
            return self.reply_json(
                {"errors": [{"message": "no such license"}] * bad, "warnings": []}, 400 if bad else 200
            )
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self.reply(401, {"X-Error-Message": "Invalid username or password."})
        if path == "/api/repos/create":
            return self.create(**json.loads(body))
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            return self.reply_json({"files": [
                {"path": file["path"], "uploadMode": "lfs" if file["size"] > 1000 else "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]})  # fmt: skip
        if re.fullmatch(r"/([^/]+/[^/]+)[.]git/info/lfs/objects/batch", path):
            return self.reply_json({"objects": [
                {**wanted, "actions": {"upload": {"href": f"{self.hub.url}/lfs/{wanted['oid']}"}}}
                for wanted in json.loads(body)["objects"]
            ]})  # fmt: skip
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            return self.commit(match[1], map(json.loads, body.splitlines()))
        return self.reply(404, {})

    def create(self, name, organization, visibility=None, **_):
        repository = f"{organization}/{name}"
        answer = {"url": f"{self.hub.url}/{repository}"}
        if repository in self.hub.repositories:
            return self.reply_json(answer, 409)
        if organization != "org":
            return self.reply(403, {"X-Error-Message": "You don't have the rights to create a model here."})
        folder = self.hub.storage / organization / name
        folder.mkdir(parents=True)
        self.hub.repositories[repository] = {"main": folder}
        if visibility == "private":
            self.hub.private.add(repository)
        return self.reply_json(answer)

    def commit(self, repository, lines):
        folder = self.hub.repositories[repository]["main"]
        for line in lines:
            value = line["value"]
            path = folder / value.get("path", "")
            if line["key"] == "deletedFile":
                path.unlink()
            elif line["key"] in ("file", "lfsFile"):
                path.parent.mkdir(parents=True, exist_ok=True)
                large = line["key"] == "lfsFile"
                path.write_bytes(self.hub.blobs[value["oid"]] if large else base64.b64decode(value["content"]))
                assert not large or etag(path) == value["oid"]
        return self.reply_json(
            {"commitUrl": f"{self.hub.url}/{repository}/commit/{commit(folder)}", "commitOid": commit(folder)}
        )

    def reply_json(self, answer, status=200):
        return self.reply(status, {"Content-Type": "application/json"}, json.dumps(answer).encode())

    def reply(self, status, headers, body=b"", sent=None):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:sent])
            if sent is not None and sent < len(body):
                self.close_connection = True


def etag(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()
