"""Writes pydantic.json: 42 models' schemas as pydantic writes them, each with values that the model takes.

pip install "pydantic[email]" && python tests/schemas/pydantic_models.py
"""

# No deferred annotations: generic models need their types at once.
# ruff: noqa: UP007, UP045
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, TypeVar, Union
from uuid import UUID

import pydantic
from pydantic import (
    UUID4,
    AnyUrl,
    Base64Bytes,
    BaseModel,
    ByteSize,
    ConfigDict,
    Discriminator,
    EmailStr,
    Field,
    HttpUrl,
    Json,
    NonNegativeInt,
    PositiveFloat,
    PostgresDsn,
    RootModel,
    SecretStr,
    StringConstraints,
    Tag,
    TypeAdapter,
    computed_field,
    conint,
    conlist,
    constr,
)
from typing_extensions import TypedDict

T = TypeVar("T")
CASES: list[tuple[str, Any, list[Any], dict[str, Any]]] = []
ID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"


def case(name: str, kind: Any, *values: Any, **options: Any) -> Any:
    CASES.append((name, kind, list(values), options))
    return kind


class Plain(BaseModel):
    name: str
    age: int
    score: float
    active: bool = True


class Address(BaseModel):
    """A home."""

    street: str
    city: str = Field(description="The town", examples=["Bonn"])
    zip_code: str = Field(pattern=r"^\d{5}$")


class Nested(BaseModel):
    title: Annotated[str, Field(min_length=1, max_length=40)]
    home: Address
    others: list[Address] = []


class Optionals(BaseModel):
    a: Optional[str] = None
    b: Union[int, str]
    c: int | None
    d: Literal["x", "y", 3] = "x"


class Constrained(BaseModel):
    word: constr(min_length=2, max_length=8)  # type: ignore[valid-type]
    code: Annotated[str, StringConstraints(pattern=r"^[A-Z]+$", max_length=6)]
    slug: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(?:-[a-z0-9]+)*$", min_length=3, max_length=30)]
    count: conint(ge=0, le=10)  # type: ignore[valid-type]
    many: conlist(int, min_length=1, max_length=4)  # type: ignore[valid-type]


class Numbers(BaseModel):
    positive: PositiveFloat
    natural: NonNegativeInt
    even: Annotated[int, Field(multiple_of=2, ge=10, le=50)]
    half: Annotated[float, Field(multiple_of=0.5, ge=0, lt=5)]
    ratio: Annotated[float, Field(gt=0, lt=1)]


class Money(BaseModel):
    price: Decimal
    tax: Annotated[Decimal, Field(max_digits=6, decimal_places=2)]


class Limited(BaseModel):
    amount: Annotated[Decimal, Field(gt=0, le=1000)]


class Times(BaseModel):
    at: datetime
    day: date
    hour: time
    span: timedelta


class Ids(BaseModel):
    id: UUID
    other: UUID4


class Hosts(BaseModel):
    four: IPv4Address
    six: IPv6Address
    net: IPv4Network


class Links(BaseModel):
    home: HttpUrl
    any: AnyUrl
    mail: EmailStr


class Secrets(BaseModel):
    password: SecretStr
    data: bytes
    encoded: Base64Bytes


class Files(BaseModel):
    path: Path
    size: ByteSize


class Color(Enum):
    red = "red"
    green = "green"


class Level(IntEnum):
    low = 1
    high = 2


class Enums(BaseModel):
    color: Color
    level: Level = Level.low
    only: Literal["one"]


class SetOfEnums(BaseModel):
    colors: set[Color]
    flags: frozenset[bool]
    sizes: set[Literal["s", "m", "l", "xl"]] = Field(min_length=1, max_length=3)


class SetOfBounded(BaseModel):
    days: set[Annotated[int, Field(ge=1, le=7)]]


class SetOfText(BaseModel):
    tags: set[str]


class Tuples(BaseModel):
    pair: tuple[int, str]
    many: tuple[float, ...]
    mixed: tuple[Literal["a"], Color, Optional[int]]


class Dicts(BaseModel):
    counts: dict[str, int]
    names: dict[int, str]
    inner: dict[str, dict[str, float]] = {}


class DictKeys(BaseModel):
    codes: dict[Annotated[str, StringConstraints(pattern=r"^[a-z]{2}$")], str]
    colors: dict[Color, int]
    ids: dict[UUID, bool] = {}
    short: dict[Annotated[str, StringConstraints(min_length=1, max_length=5)], int] = {}


class DictSizes(BaseModel):
    some: Annotated[dict[str, int], Field(min_length=1, max_length=3)]


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    good: bool = True


class Pets(BaseModel):
    pet: Union[Cat, Dog] = Field(discriminator="kind")
    more: list[Annotated[Union[Cat, Dog], Field(discriminator="kind")]] = []


class Bird(BaseModel):
    wings: int


def kind_of(value: Any) -> str:
    return "bird" if isinstance(value, (dict, Bird)) else "text"


class Tagged(BaseModel):
    it: Annotated[Union[Annotated[Bird, Tag("bird")], Annotated[str, Tag("text")]], Discriminator(kind_of)]


class Page(BaseModel, Generic[T]):
    items: list[T]
    total: NonNegativeInt
    next: Optional[str] = None


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


class Folder(BaseModel):
    name: str
    files: list["File"] = []


class File(BaseModel):
    name: str
    within: Optional[Folder] = None


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True, extra="forbid", title="With aliases")
    user_id: int = Field(alias="userId", ge=1)
    full_name: str = Field(serialization_alias="fullName", validation_alias="full-name")


class Computed(BaseModel):
    width: float
    height: float

    @computed_field
    def area(self) -> float:
        return self.width * self.height


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int]
    name: str


class Anything(BaseModel):
    anything: Any
    more: dict[str, Any]
    items: list
    raw: Json


class Base(BaseModel):
    id: int
    created: datetime


class Derived(Base):
    name: str = Field(json_schema_extra={"x-order": 1, "placeholder": "name", "examples": ["Ada"]})


class Extra(BaseModel):
    model_config = ConfigDict(json_schema_extra={"x-ui": {"columns": 2}, "example": {"a": 1}})
    a: int = Field(deprecated=True, exclude=False, repr=False)


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Movie(TypedDict, total=False):
    name: str
    year: int


class Shapes(BaseModel):
    at: Point
    movie: Movie


class Patterned(BaseModel):
    phone: Annotated[str, Field(pattern=r"^\+?[1-9]\d{1,14}$")]
    inside: Annotated[str, Field(pattern=r"[0-9]{2}", max_length=12)]
    day: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$", json_schema_extra={"format": "date"})]


class Deep(BaseModel):
    by_name: dict[str, list[Optional[Address]]]
    either: Union[list[int], dict[str, bool], None]
    matrix: Annotated[list[Annotated[list[float], Field(min_length=2, max_length=2)]], Field(max_length=3)]


class Step(BaseModel):
    explanation: str
    output: str


class Answer(BaseModel):
    """An answer as a chain of steps."""

    steps: list[Step]
    final_answer: str
    confidence: Annotated[float, Field(ge=0, le=1)]


class Search(BaseModel):
    tool: Literal["search"]
    query: str
    limit: Annotated[int, Field(ge=1, le=100)] = 10


class Send(BaseModel):
    tool: Literal["send"]
    to: list[EmailStr]
    when: Optional[datetime] = None


class Call(BaseModel):
    thought: str
    action: Annotated[Union[Search, Send], Field(discriminator="tool")]


class Event(BaseModel):
    name: str
    starts: datetime
    lasts: timedelta = timedelta(hours=1)
    where: Union[Address, HttpUrl]
    guests: Annotated[list[EmailStr], Field(max_length=20)] = []
    priority: Level = Level.low


class Dsn(BaseModel):
    url: PostgresDsn


ADDRESS = {"street": "Am Markt 1", "city": "Bonn", "zip_code": "53111"}
case("plain", Plain, {"name": "Ada", "age": 36, "score": 9.5, "active": False})
case("nested", Nested, {"title": "x", "home": ADDRESS, "others": [ADDRESS]})
case("optionals", Optionals, {"a": None, "b": 3, "c": None, "d": 3}, {"b": "x", "c": 1})
case("constrained", Constrained, {"word": "word", "code": "ABC", "slug": "a-slug-1", "count": 10, "many": [1, 2]})
case("numbers", Numbers, {"positive": 0.5, "natural": 0, "even": 12, "half": 4.5, "ratio": 0.25})
case("decimals", Money, {"price": "12.50", "tax": "0.07"}, {"price": 12.5, "tax": 1.25})
case("decimal bounds", Limited, {"amount": 12.5})
case("decimals out", Money, {"price": "12.50", "tax": "0.07"}, mode="serialization")
case("times", Times, {"at": "2024-02-29T12:30:00Z", "day": "2024-02-29", "hour": "08:15:00Z", "span": "P1DT2H30M"})
case("ids", Ids, {"id": ID, "other": ID})
case("hosts", Hosts, {"four": "10.0.0.1", "six": "fe80::1", "net": "10.0.0.0/8"})
case("links", Links, {"home": "https://example.com/a?b=1", "any": "ftp://example.com/x", "mail": "ada@example.com"})
case("secrets", Secrets, {"password": "pa ss", "data": "abc", "encoded": "aGVsbG8="})
case("files", Files, {"path": "/tmp/x.txt", "size": 1024})
case("enums", Enums, {"color": "green", "level": 2, "only": "one"})
case("set of enums", SetOfEnums, {"colors": ["green", "red"], "flags": [True], "sizes": ["m", "s"]})
case("set of bounded", SetOfBounded, {"days": [1, 5, 7]})
case("set of text", SetOfText, {"tags": ["b", "a"]})
case("tuples", Tuples, {"pair": [1, "a"], "many": [1.5, 2], "mixed": ["a", "red", None]})
case("dicts", Dicts, {"counts": {"a": 1}, "names": {"1": "x"}, "inner": {"a": {"b": 1.5}}})
case("dict keys", DictKeys, {"codes": {"de": "x"}, "colors": {"red": 3}, "ids": {ID: True}, "short": {"abc": 1}})
case("dict sizes", DictSizes, {"some": {"a": 1}}, {"some": {"a": 1, "b": 2, "c": 3}})
case("discriminated", Pets, {"pet": {"kind": "dog", "good": False}, "more": [{"kind": "cat", "lives": 7}]})
case("tagged", Tagged, {"it": {"wings": 2}}, {"it": "x"})
case("generic", Page[Address], {"items": [ADDRESS], "total": 1, "next": None})
case("generic in generic", Page[Page[int]], {"items": [{"items": [1], "total": 1}], "total": 1})
case("recursive", Tree, {"value": 1, "children": [{"value": 2, "children": []}]})
case("mutual", Folder, {"name": "a", "files": [{"name": "b", "within": {"name": "c"}}]})
case("aliases", Aliased, {"userId": 3, "full-name": "Ada Lovelace"})
case("computed", Computed, {"width": 2.5, "height": 4, "area": 10.0}, mode="serialization")
case("extra allowed", Loose, {"name": "x", "more": 3})
case("anything", Anything, {"anything": [1], "more": {"a": None}, "items": [1, "x"], "raw": '{"a": 1}'})
case("derived", Derived, {"id": 1, "created": "2024-02-29T12:30:00+02:00", "name": "x"})
case("annotations", Extra, {"a": 1})
case("tuple and dict types", Shapes, {"at": [1, 2.5], "movie": {"name": "x"}})
case("patterns", Patterned, {"phone": "+4915112345678", "inside": "no 42", "day": "2024-02-29"})
case("deep", Deep, {"by_name": {"a": [ADDRESS, None]}, "either": {"a": True}, "matrix": [[1, 2.5]]})
case("steps", Answer, {"steps": [{"explanation": "add", "output": "2"}], "final_answer": "2", "confidence": 0.9})
case("call", Call, {"thought": "look", "action": {"tool": "search", "query": "x", "limit": 5}})
case(
    "event",
    Event,
    {"name": "x", "starts": "2024-02-29T12:30:00Z", "lasts": "PT45M", "where": ADDRESS, "guests": ["a@example.com"]},
    {"name": "x", "starts": "2024-02-29T12:30:00.5Z", "where": "https://example.com/"},
)
case("root", RootModel[dict[str, Annotated[list[int], Field(min_length=1)]]], {"a": [1, 2]})
case("dsn", Dsn, {"url": "postgres://user:secret@localhost:5432/app"})


def main() -> None:
    found = {}
    for name, kind, values, options in CASES:
        adapter = TypeAdapter(kind)
        for value in values:
            adapter.validate_json(json.dumps(value))
        found[name] = {"schema": adapter.json_schema(**options), "values": values}
    assert len(found) == 42, len(found)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}" for name, entry in found.items())
    text = f'{{"packages": {{"pydantic": "{pydantic.VERSION}"}}, "schemas": {{\n{lines}\n}}}}\n'
    Path(__file__).with_name("pydantic.json").write_text(text)


if __name__ == "__main__":
    main()
