"""The collector's HTTP interface as OpenAPI 3.1, served by the collector itself."""

from __future__ import annotations

from typing import Any, Final

from dpstream.pipeline.collector.responses import JSON, PROBLEM_JSON, json_response
from dpstream.topics.envelopes import BODY_MAX, CONTENT_TYPE

_HEXADECIMAL: Final = {"type": "string", "pattern": "^([0-9a-f]{2})+$"}
OUTCOMES: Final = {
    "202": "is finished: the report is in Kafka and counted",
    "400, 403, 413, 415": "discards the report: the response would be the same again",
    "401": "requests another token from its app's backend and resends the report with it",
    "404": "keeps the report and retries later: this collector does not have the job (yet)",
    "409 early": "keeps the report and resends it when its epoch `begins`",
    "409 late": "discards the report: it is not counted, or might not be",
    "409 fingerprint, 410": "discards the report and fetches the description again",
    "408, 429, 500, 503, no response": "resends the report, after `Retry-After` seconds if stated",
}
"""Reaction of a device to each response; the README of this package has the same table."""
_PROBLEMS: Final = {
    "400": "The body is not in the format of this job's reports. Do not resend it.",
    "401": "The bearer token is missing, invalid or expired. Resend the report with another token.",
    "403": "With a token, a body must contain exactly one envelope. Do not resend it.",
    "404": "No such job for devices exists (yet). Keep the report and retry later.",
    "405": "Method not allowed.",
    "408": "The request was not complete in time. Resend it.",
    "409": "The epoch has ended, or ended before the report was in Kafka (late): do not resend "
    "it. It has not started (early): resend it when it starts. The job has another fingerprint "
    "(fingerprint): do not resend it, and fetch the description.",
    "410": "Another deployment of this job is running (deployment). Do not resend it, and "
    "fetch the description.",
    "413": "The body is too large. Do not resend it.",
    "415": f"The content type must be {CONTENT_TYPE}. Do not resend it.",
    "429": "Too many requests from this address. Resend it after Retry-After seconds.",
    "500": "The collector failed. Resend it.",
    "503": "Temporarily unavailable. Resend it after Retry-After seconds.",
}
_RETRIED: Final = ("429", "503")


def _answers(*rejections: str, **answers: Any) -> dict[str, Any]:
    """Return the answers of an operation by status; `rejections` are statuses."""
    problems = {
        status: {
            "description": _PROBLEMS[status],
            "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            **(
                {
                    "headers": {
                        "Retry-After": {
                            "description": "Seconds.",
                            "schema": {"type": "integer", "minimum": 0},
                        }
                    }
                }
                if status in _RETRIED
                else {}
            ),
        }
        for status in rejections
    }
    return {**{status.removeprefix("s"): answer for status, answer in answers.items()}, **problems}


def _said(description: str, **properties: Any) -> dict[str, Any]:
    """Return the description of a JSON object as an answer; all members are required."""
    schema = {"type": "object", "required": list(properties), "properties": properties}
    return {"description": description, "content": {JSON: {"schema": schema}}}


_JOB: Final = {
    "name": "job",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$", "maxLength": 236},
}
_INTEGER: Final = {"type": "integer", "minimum": 0}

DESCRIPTION: Final[dict[str, Any]] = {
    "openapi": "3.1.0",
    "info": {
        "title": "dpstream collector",
        "version": "1",
        "description": "Receives reports of devices, which randomize their values themselves.",
        "license": {"name": "see the repository", "identifier": "LicenseRef-dpstream"},
    },
    "servers": [{"url": "/"}],
    "paths": {
        "/v1/jobs": {
            "get": {
                "operationId": "listJobs",
                "summary": "Jobs that devices report to.",
                "responses": _answers(
                    "405",
                    "429",
                    "503",
                    s200=_said(
                        "Names of the jobs.", jobs={"type": "array", "items": {"type": "string"}}
                    ),
                ),
            }
        },
        "/v1/jobs/{job}": {
            "parameters": [_JOB],
            "get": {
                "operationId": "describeJob",
                "summary": "Description of a job for devices, signed by its operator.",
                "responses": _answers(
                    "404",
                    "405",
                    "429",
                    "503",
                    s200=_said(
                        "All fields are base64. The statement is JSON; the signature is "
                        "Ed25519 over the bytes 'dpstream job description', a zero byte, and "
                        "the bytes of the statement.",
                        statement={"type": "string"},
                        signature={"type": "string", "minLength": 88, "maxLength": 88},
                        signer={"type": "string", "minLength": 44, "maxLength": 44},
                    ),
                ),
            },
        },
        "/v1/jobs/{job}/time": {
            "parameters": [_JOB],
            "get": {
                "operationId": "tellTime",
                "summary": "Current time and epoch of a job.",
                "responses": _answers(
                    "404",
                    "405",
                    "429",
                    "503",
                    s200=_said(
                        "Milliseconds since 1970 (UTC), and the current epoch; 0 or below "
                        "before the first.",
                        time=_INTEGER,
                        epoch={"type": "integer"},
                    ),
                ),
            },
        },
        "/v1/jobs/{job}/reports": {
            "parameters": [_JOB],
            "post": {
                "operationId": "report",
                "summary": "Send reports of one epoch, each in an envelope.",
                "description": "However often the same bytes arrive, and at which collectors, a "
                "report counts once.\n\n| status | a device |\n|---|---|\n"
                + "".join(f"| {status} | {text} |\n" for status, text in OUTCOMES.items()),
                "security": [{}, {"token": []}],
                "requestBody": {
                    "required": True,
                    "content": {
                        CONTENT_TYPE: {
                            "schema": {
                                "type": "string",
                                "contentMediaType": CONTENT_TYPE,
                                "maxLength": BODY_MAX,
                            }
                        }
                    },
                },
                "responses": _answers(
                    *_PROBLEMS,
                    s202=_said(
                        "All reports are stored.",
                        accepted={"type": "integer", "minimum": 1},
                        epoch={"type": "integer", "minimum": 1},
                    ),
                ),
            },
        },
        "/v1/openapi.json": {
            "get": {
                "operationId": "describeInterface",
                "summary": "This description.",
                "responses": _answers(
                    "405",
                    "429",
                    s200={
                        "description": "OpenAPI 3.1.",
                        "content": {JSON: {"schema": {"type": "object"}}},
                    },
                ),
            }
        },
        "/healthz": {
            "get": {
                "operationId": "isAlive",
                "summary": "Whether the collector is up.",
                "responses": _answers(
                    "405", "429", s200=_said("It is up.", status={"const": "alive"})
                ),
            }
        },
        "/readyz": {
            "get": {
                "operationId": "isReady",
                "summary": "Whether the collector currently receives reports.",
                "responses": _answers(
                    "405", "429", "503", s200=_said("It does.", status={"const": "ready"})
                ),
            }
        },
    },
    "components": {
        "securitySchemes": {
            "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
        },
        "schemas": {
            "Problem": {
                "type": "object",
                "description": "RFC 9457.",
                "required": ["type", "title", "status"],
                "properties": {
                    "type": {"type": "string", "pattern": "^/problems/[a-z-]+$"},
                    "title": {"type": "string"},
                    "status": {"type": "integer", "minimum": 400, "maximum": 599},
                    "begins": {**_INTEGER, "description": "Milliseconds since 1970."},
                    "deployment": {**_HEXADECIMAL, "description": "The current deployment."},
                },
            }
        },
    },
}
OPENAPI: Final = json_response(DESCRIPTION)
