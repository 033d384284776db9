"""A web server on this machine, for what downloads."""

import contextlib
import http.server
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any

Answers = Mapping[str, tuple[Any, ...]]


@contextlib.contextmanager
def serve(answers: Answers) -> Iterator[http.server.ThreadingHTTPServer]:
    """A server at its `url` until the block ends; it counts `downloads`.

    answers  path, with the query or for every query -> status, body, bytes that are promised, and
             headers (name, value), if any
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self._answer(send=False)

        def do_GET(self):
            self.server.downloads += 1
            self._answer(send=True)

        def _answer(self, send):
            path = urllib.parse.unquote(self.path.partition("?")[0])
            nothing = (404, b"", 0)
            status, body, promised, *headers = answers.get(self.path, answers.get(path, nothing))
            self.send_response(status)
            for header in headers:
                self.send_header(*header)
            self.send_header("Content-Length", str(promised))
            self.end_headers()
            if send:
                self.wfile.write(body)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.downloads = 0
        running.url = f"http://127.0.0.1:{running.server_port}"
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()
