"""Stand-ins for AWS on loopback: a Cloud Control API with resources, and a service that follows a script."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

Answer = tuple[int, dict[str, Any]]


class Refused(Exception):
    """An answer that is an error of the service."""

    def __init__(self, code: str, message: str = "", status: int = 400) -> None:
        super().__init__(code)
        self.answer = status, {"__type": code, "message": message}


class HangUp(Exception):
    """The connection is closed without an answer."""


class _Handler(BaseHTTPRequestHandler):
    """Hands the JSON of a request to the stand-in, and its answer back."""

    answer: ClassVar[Callable[[str, dict[str, Any]], Answer]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        operation = self.headers["X-Amz-Target"].rpartition(".")[2]
        try:
            status, answer = type(self).answer(operation, body)
        except Refused as refused:
            status, answer = refused.answer
        except HangUp:
            self.close_connection = True
            return
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("x-amzn-RequestId", "request-1")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the tests read what the stand-in has kept."""


@contextmanager
def served(answer: Callable[[str, dict[str, Any]], Answer]) -> Iterator[str]:
    """Serve a stand-in; its address."""
    handler = type("Handler", (_Handler,), {"answer": staticmethod(answer)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Script:
    """A service that answers each operation with what the test has laid ready, the last of it again and
    again, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Any]] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def answer(self, operation: str, body: dict[str, Any]) -> Answer:
        self.asked.append((operation, body))
        ready = self.answers[operation]
        answer = ready.pop(0) if len(ready) > 1 else ready[0]
        if isinstance(answer, Exception):
            raise answer
        return 200, answer

    def operations(self) -> list[str]:
        return [operation for operation, _ in self.asked]


class CloudControl:
    """The Cloud Control API as far as the jobs use it: requests go on by themselves and are asked about."""

    NAMED_BY: ClassVar[dict[str, str]] = {
        "AWS::Logs::LogGroup": "LogGroupName",
        "AWS::RDS::DBInstance": "Name",
    }
    """The property that is a type's identifier. Others are named by the service."""

    def __init__(self) -> None:
        self.resources: dict[tuple[str, str], dict[str, Any]] = {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.polls = 1
        """How often a request says that it is in progress before it ends."""
        self.failures: list[tuple[str, str]] = []
        """Error codes and messages by which the next requests end."""
        self.hang_up: set[str] = set()
        """Operations that are done once without an answer."""
        self.refusals: list[tuple[str, Refused]] = []
        """Operations that are refused, once each."""
        self.held = threading.Event()
        self.held.set()
        """Cleared, requests stay in progress."""
        self._requests: dict[str, dict[str, Any]] = {}
        self._tokens: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()

    def answer(self, operation: str, body: dict[str, Any]) -> Answer:
        with self._lock:
            self.asked.append((operation, body))
            if self.refusals and self.refusals[0][0] == operation:
                raise self.refusals.pop(0)[1]
            answer = getattr(self, f"_{operation}")(body)
            if operation in self.hang_up:
                self.hang_up.remove(operation)
                raise HangUp
            return 200, answer

    def tokens(self, operation: str) -> list[str]:
        """The client tokens that came with an operation."""
        return [body["ClientToken"] for name, body in self.asked if name == operation]

    def count(self, operation: str) -> int:
        return sum(name == operation for name, _ in self.asked)

    def _GetResource(self, body: dict[str, Any]) -> dict[str, Any]:
        properties = self._found(body)
        # What may only be written is not told.
        told = {name: value for name, value in properties.items() if "Password" not in name}
        description = {"Identifier": body["Identifier"], "Properties": json.dumps(told)}
        return {"TypeName": body["TypeName"], "ResourceDescription": description}

    def _CreateResource(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._request("CREATE", body, body["DesiredState"])

    def _UpdateResource(self, body: dict[str, Any]) -> dict[str, Any]:
        self._found(body)
        return self._request("UPDATE", body, body["PatchDocument"])

    def _DeleteResource(self, body: dict[str, Any]) -> dict[str, Any]:
        self._found(body)
        return self._request("DELETE", body, "")

    def _GetResourceRequestStatus(self, body: dict[str, Any]) -> dict[str, Any]:
        request = self._requests[body["RequestToken"]]
        if request["polls"] > 0 or not self.held.is_set():
            request["polls"] -= 1
        elif request["event"]["OperationStatus"] == "IN_PROGRESS":
            self._end(request)
        return {"ProgressEvent": request["event"]}

    def _found(self, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return self.resources[body["TypeName"], body["Identifier"]]
        except KeyError:
            raise Refused("ResourceNotFoundException", "there is none") from None

    def _request(self, operation: str, body: dict[str, Any], document: str) -> dict[str, Any]:
        client_token = body["ClientToken"]
        if client_token in self._tokens:
            known, token = self._tokens[client_token]
            if known != operation + document:
                raise Refused("ClientTokenConflictException", "the token is another request's")
            return {"ProgressEvent": self._requests[token]["event"]}
        token = f"request-{len(self._requests)}"
        self._tokens[client_token] = operation + document, token
        event = {
            "TypeName": body["TypeName"],
            "Operation": operation,
            "OperationStatus": "IN_PROGRESS",
            "RequestToken": token,
        }
        if "Identifier" in body:
            event["Identifier"] = body["Identifier"]
        self._requests[token] = {"event": event, "document": document, "polls": self.polls}
        return {"ProgressEvent": dict(event)}

    def _end(self, request: dict[str, Any]) -> None:
        event = request["event"]
        if self.failures:
            code, message = self.failures.pop(0)
            event |= {"OperationStatus": "FAILED", "ErrorCode": code, "StatusMessage": message}
            return
        event["OperationStatus"] = "SUCCESS"
        type = event["TypeName"]
        if event["Operation"] == "CREATE":
            state = json.loads(request["document"])
            name = state.get(self.NAMED_BY.get(type, ""), f"chosen-{len(self.resources)}")
            state["Arn"] = f"arn:aws:fake:eu-west-1:123456789012:{name}"
            self.resources[type, name] = state
            event |= {"Identifier": name, "ResourceModel": json.dumps(state)}
        elif event["Operation"] == "DELETE":
            del self.resources[type, event["Identifier"]]
        else:
            patch(self.resources[type, event["Identifier"]], json.loads(request["document"]))


def patch(properties: dict[str, Any], changes: list[dict[str, Any]]) -> None:
    """Apply a JSON Patch to objects."""
    for change in changes:
        *path, last = (
            part.replace("~1", "/").replace("~0", "~") for part in change["path"].lstrip("/").split("/")
        )
        place = properties
        for part in path:
            place = place[part]
        if change["op"] != "add":
            assert last in place, f"there is no {change['path']} to {change['op']}"
        if change["op"] == "remove":
            del place[last]
        else:
            place[last] = change["value"]
