"""Defines the values of `format` that strings may have, as expressions."""

from __future__ import annotations

__all__ = ["ANY_TEXT", "FORMATS", "WIDER"]

_YEAR = r"(\d{3}[1-9]|\d{2}[1-9]\d|\d[1-9]\d{2}|[1-9]\d{3})"
_LEAP_YEAR = r"(\d\d(0[48]|[2468][048]|[13579][26])|([2468][048]|0[48]|[13579][26])00)"
_DATE = (
    rf"({_YEAR}-((0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
    rf"|{_LEAP_YEAR}-02-29)"
)
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"({_BYTE}\.){{3}}{_BYTE}"
_HEX = r"[0-9a-fA-F]"
_GROUP = rf"{_HEX}{{1,4}}"
_IPV6 = (
    rf"(({_GROUP}:){{7}}({_GROUP}|:)|({_GROUP}:){{6}}(:{_GROUP}|{_IPV4}|:)"
    + "".join(
        rf"|({_GROUP}:){{{count}}}(:{_IPV4}|(:{_GROUP}){{1,{7 - count}}}|:)" if count < 6 else ""
        for count in range(5, 0, -1)
    )
    + rf"|:((:{_GROUP}){{1,7}}|:))"
)
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL})*"
_UUID = rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_PART = r"([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
_PORT = r"(:[1-9]\d*)?"
_AUTHORITY = rf"//[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?{_PORT}"
_USER = r"[A-Za-z0-9._~!$&'*+,;=:-]+@"
_TAIL = rf"(\?({_PART}|[/?])*)?(#({_PART}|[/?])*)?"
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]*"
_URI = rf"{_SCHEME}:({_AUTHORITY}(/({_PART}|/)*)?|{_PART}({_PART}|/)*){_TAIL}"
_WITH_USER = rf"{_SCHEME}://({_USER})?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?{_PORT}(/({_PART}|/)*)?{_TAIL}"
_REFERENCE = rf"({_URI}|\.{{0,2}}(/({_PART}({_PART}|/)*)?)?{_TAIL})"
_POINTER = r"(/([^/~]|~[01])*)*"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": (
        r"P(\d{1,9}W|(?!$)(\d{1,9}Y)?(\d{1,9}M)?(\d{1,9}D)?"
        r"(T(?=\d)(\d{1,9}H)?(\d{1,9}M)?(\d{1,9}(\.\d{1,9})?S)?)?)"
    ),
    "uuid": _UUID,
    **{f"uuid{n}": f"{_HEX}{{8}}-{_HEX}{{4}}-{n}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}" for n in range(1, 9)},
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "ipv4network": rf"{_IPV4}/(3[0-2]|[12]?\d)",
    "ipv4interface": rf"{_IPV4}/(3[0-2]|[12]?\d)",
    "ipv6network": rf"{_IPV6}/(12[0-8]|1[01]\d|[1-9]?\d)",
    "ipv6interface": rf"{_IPV6}/(12[0-8]|1[01]\d|[1-9]?\d)",
    "ipvanyaddress": rf"({_IPV4}|{_IPV6})",
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z]{2,24})+",
    "hostname": _HOST,
    "uri": _URI,
    "uri-reference": _REFERENCE,
    "multi-host-uri": _WITH_USER,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d*)(#|{_POINTER})",
    "base64": r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    "base64url": r"([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{2}(==)?|[A-Za-z0-9_-]{3}=?)?",
    "jwt": r"eyJ[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*",
}
"""Narrower than a long definition: the host of a URI is a name or an IPv4 address."""
FORMATS |= {"idn-email": FORMATS["email"], "idn-hostname": _HOST, "iri": _URI, "iri-reference": _REFERENCE}

WIDER = {"email": r".+@.+", "idn-email": r".+@.+"}
"""Wider expressions, for use beside a narrower pattern."""

ANY_TEXT = ("password", "binary", "byte", "path", "file-path", "directory-path")
"""Formats that allow any text."""
