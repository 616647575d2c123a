"""The page of questions "same or not?" and its API, as an application of FastAPI."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Response
from pydantic import BaseModel, Field

from dml.data.image_files.images import ImageFile, ImageMemoryError, UnreadableImageError
from dml.inference.labeling import Labeling
from dml.inference.serving.image_search import RefusedRequestError, draw_picture
from dml.inference.serving.web_api import make_app

FILES = {"label.html": "text/html", "page.css": "text/css", "label.js": "text/javascript"}
PICTURE = 640
"""The largest height and width of a picture in pixels."""


class Reply(BaseModel):
    """The answer to a question, or that the last answer is taken back."""

    number: int = Field(description="number of the question, which another page may have answered meanwhile")
    answer: bool | None = Field(description="whether the images are of one class; null: skipped")
    undo: bool = False


def create_label_app(labeling: Labeling, hosts: Sequence[str]) -> FastAPI:
    """Make the application; ``hosts`` are the names by which browsers may call the server."""
    router = APIRouter(prefix="/api")

    @router.get("/question")
    def ask() -> dict[str, Any]:
        """Return the next question, see `Labeling.ask`."""
        return labeling.ask()

    @router.post("/answers")
    def reply(sent: Reply) -> dict[str, Any]:
        """Store an answer, or take the last one back -> the next question."""
        labeling.reply(sent.number, same=sent.answer, undo=sent.undo)
        return labeling.ask()

    @router.get("/images/{image}", response_class=Response)
    def get_image(image: Annotated[int, Path(ge=0, lt=len(labeling.paths))]) -> Response:
        """Return the picture of an image."""
        try:
            return Response(draw_picture(ImageFile(labeling.paths[image]), PICTURE), media_type="image/jpeg")
        except (UnreadableImageError, ImageMemoryError) as error:
            raise RefusedRequestError(410, f"image {image}: its file can't be read any more") from error

    return make_app("dml label", 'Questions "same or not?" about images.', router, FILES, hosts)
