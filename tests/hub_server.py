"""A small Hugging Face hub on loopback: the part of its HTTP interface that `huggingface_hub` downloads through."""

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
        self.requests: list[tuple[str, str, str | None]] = []
        self.url = ""

    def fetched(self):
        """Names of the files that were sent, whole or in part."""
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
    """A name for what a folder holds, as a commit has."""
    digest = hashlib.sha1()
    for path in sorted(folder.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range")))
        for old, new in self.hub.moved.items():
            if f"/{old}/" in f"{path}/":
                return self.reply(307, {"Location": self.path.replace(old, new)})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", path):
            return self.answer_api(*match.groups())
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.answer_file(*match.groups())
        if match := re.fullmatch(r"/cdn/([^/]+/[^/]+)/([^/]+)/(.+)", path):
            return self.send_file(self.folder(*match.groups()[:2]) / match[3], {})
        return self.reply(404, {})

    def folder(self, repository, revision):
        """The folder of a revision's name or commit; None after an error was sent."""
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
            {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": etag(path)[:40]}
            for path in sorted(folder.iterdir())
        ]
        info = {
            "id": repository,
            "sha": commit(folder),
            "private": repository in self.hub.private,
            "siblings": [{"rfilename": file["path"]} for file in files],
        }
        body = json.dumps(files if kind == "tree" else info).encode()
        return self.reply(200, {"Content-Type": "application/json"}, body)

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

    def reply(self, status, headers, body=b"", sent=None):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:sent])
            if sent is not None and sent < len(body):
                self.close_connection = True


def etag(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()
