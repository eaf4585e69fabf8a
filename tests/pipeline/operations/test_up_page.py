"""The page of a run: opened only where somebody can look at it."""

from __future__ import annotations

import webbrowser

import pytest

from dpstream.pipeline.operations.up.page import has_browser


def test_a_machine_without_a_screen_has_no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "get", lambda: object())
    assert not has_browser({})
    assert has_browser({"DISPLAY": ":0"})
    assert has_browser({"WAYLAND_DISPLAY": "wayland-0"})


def test_a_screen_without_a_browser_is_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> object:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", none)
    assert not has_browser({"DISPLAY": ":0"})
