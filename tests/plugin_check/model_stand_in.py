# SPDX-License-Identifier: Apache-2.0
"""A scripted stand-in for the model's service on 127.0.0.1: it asks for one tool call, then says that it is done.

It speaks as much of the service's message stream as the client needs. Nothing here says how a model behaves; it makes the
client carry out a known tool call, so that hooks and permissions really run.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DONE = "That is all."


@dataclass
class Script:
    """What the stand-in asks for, and what it was told.

    tool, given: the tool call; tool "" asks for none. heard: every text of every request, in order.
    """

    tool: str = ""
    given: dict[str, Any] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)
    endpoint: str = ""
    asked: bool = False

    def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        """The content block that answers a request."""
        messages = request.get("messages", [])
        self.heard.append(json.dumps(messages[-1:], ensure_ascii=False))
        offered = {tool.get("name") for tool in request.get("tools", [])}
        if self.tool and not self.asked and self.tool in offered:
            self.asked = True
            return {"type": "tool_use", "id": "toolu_scripted01", "name": self.tool, "input": self.given}
        return {"type": "text", "text": DONE}


@contextmanager
def serving(script: Script) -> Iterator[Script]:
    """Serve a script on a free port of 127.0.0.1."""

    class Handler(_Handler):
        play = script

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    script.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()


def events(block: dict[str, Any], model: str) -> list[dict[str, Any]]:
    """The events of one streamed message that holds one content block."""
    usage = {"input_tokens": 1, "output_tokens": 1}
    tool = block["type"] == "tool_use"
    message = {
        "id": "msg_scripted01", "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])} if tool else (
        {"type": "text_delta", "text": block["text"]}
    )  # fmt: skip
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block | ({"input": {}} if tool else {"text": ""})},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use" if tool else "end_turn", "stop_sequence": None},
         "usage": usage},
        {"type": "message_stop"},
    ]  # fmt: skip


class _Handler(BaseHTTPRequestHandler):
    play: Script
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Nothing on the console."""

    def do_HEAD(self) -> None:
        self._send(200, b"", "application/json")

    def do_GET(self) -> None:
        self._send(404, b"{}", "application/json")

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if "count_tokens" in self.path:
            return self._send(200, b'{"input_tokens": 1}', "application/json")
        if "/messages" not in self.path:
            return self._send(404, b"{}", "application/json")
        block, model = self.play.reply(request), request.get("model", "")
        if request.get("stream"):
            stream = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events(block, model))
            return self._send(200, stream.encode(), "text/event-stream")
        tool = block["type"] == "tool_use"
        message = events(block, model)[0]["message"] | {
            "content": [block], "stop_reason": "tool_use" if tool else "end_turn"
        }  # fmt: skip
        return self._send(200, json.dumps(message).encode(), "application/json")

    def _send(self, code: int, data: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
