"""The page of questions "same or not?" and its API, as an application of FastAPI."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Path, Request, Response
from pydantic import BaseModel, Field

from dml.data.image_files.images import ImageFile, ImageMemoryError, UnreadableImageError
from dml.inference.labeling import Labeling
from dml.inference.serving.image_search import RefusedRequestError, draw_picture
from dml.inference.serving.web_api import make_app

FILES = {"label.html": "text/html", "page.css": "text/css", "label.js": "text/javascript"}
PICTURE = 640
router = APIRouter(prefix="/api")


class Question(BaseModel):
    """Two images; a number is null if nothing is left to ask."""

    number: int = Field(description="number of answers before this question")
    first: int | None
    second: int | None
    labeled: int = Field(description="number of images with a label in the file")
    classes: int


class Reply(BaseModel):
    """The answer to a question, or that the last answer is taken back."""

    number: int = Field(description="number of the question, which another page may have answered meanwhile")
    answer: bool | None = Field(description="whether the images are of one class; null: skipped")
    undo: bool = False


def _find_labeling(request: Request) -> Labeling:
    labeling: Labeling = request.app.state.labeling
    return labeling


Session = Annotated[Labeling, Depends(_find_labeling)]


@router.get("/question")
def ask(labeling: Session) -> Question:
    """Return the next question."""
    return Question(**labeling.ask())


@router.post("/answers")
def reply(labeling: Session, sent: Reply) -> Question:
    """Store an answer, or take the last one back -> the next question."""
    labeling.reply(sent.number, same=sent.answer, undo=sent.undo)
    return Question(**labeling.ask())


@router.get("/images/{image}", response_class=Response)
def get_image(labeling: Session, image: Annotated[int, Path(ge=0)]) -> Response:
    """Return the picture of an image."""
    if image >= len(labeling.paths):
        raise RefusedRequestError(404, f"image {image}: there are {len(labeling.paths)}")
    try:
        return Response(draw_picture(ImageFile(labeling.paths[image]), PICTURE), media_type="image/jpeg")
    except (UnreadableImageError, ImageMemoryError) as error:
        raise RefusedRequestError(410, f"image {image}: its file can't be read any more") from error


def create_label_app(labeling: Labeling, hosts: Sequence[str]) -> FastAPI:
    """Make the application; ``hosts`` are the names by which browsers may call the server."""
    app = make_app("dml label", 'Questions "same or not?" about images.', router, FILES, hosts)
    app.state.labeling = labeling
    return app
