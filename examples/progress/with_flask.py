"""``flask --app with_flask run``"""

from __future__ import annotations

import live
from flask import Flask, Response, abort, redirect

from redbeat_lite import PipelineNotFound

app = Flask(__name__)


@app.get("/")
def index() -> Response:
    """Start a run, and show it. In earnest a POST does, from whoever may."""
    return redirect(f"/runs/{live.start()}")  # type: ignore[return-value] # Flask's redirect is werkzeug's


@app.get("/runs/<run_id>")
def page(run_id: str) -> str:
    return live.PAGE


@app.get("/runs/<run_id>/events")
def events(run_id: str) -> Response:
    try:
        told = live.events(run_id)
    except PipelineNotFound:
        abort(404)
    return Response(told, mimetype="text/event-stream", headers={"Cache-Control": "no-cache"})
