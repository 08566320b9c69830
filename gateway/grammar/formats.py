"""Formats of strings that llguidance 1.9.1 enforces, and what it allows in them beyond what RFC 3339 does.

It knows no leap years, and takes second 60 at any time of the day. Leap seconds are not written here at all: few
programs read them.
"""

_YEAR = r"(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d\d\d)"
_LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = rf"(?:{_YEAR}-(?:02-(?:[01]\d|2[0-8])|(?:0[13-9]|1[0-2])-\d\d)|{_LEAP_YEAR}-02-29)"
_TIME = r"\d\d:\d\d:[0-5]"

# By format, a pattern that holds as well; None where there is nothing to add.
ENFORCED_FORMATS: dict[str, str | None] = {
    "date-time": rf"^{_DATE}[Tt]{_TIME}".replace(r"\d", "[0-9]"),
    "date": rf"^{_DATE}$".replace(r"\d", "[0-9]"),
    "time": rf"^{_TIME}".replace(r"\d", "[0-9]"),
    **dict.fromkeys(("duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")),
}
