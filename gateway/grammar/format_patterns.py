"""Formats of strings as regexes of whole texts, for strings that stand outside of JSON.

What they let through llguidance lets through in JSON, which also knows more spellings: IPv4 inside IPv6, quoted names
in addresses. Sources: RFC 3339 (dates, times, durations), 5321 (e-mail), 1123 (hosts), 4291 (IPv6), 9562 (UUIDs) and
3986 (URIs). The days of February are in `formats.py`.
"""

_DAY = r"(?:0[1-9]|[12][0-9]|3[01])"
_DATE = rf"[0-9]{{4}}-(?:(?:0[13578]|1[02])-{_DAY}|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|[12][0-9]))"
_HOUR, _SIXTIETH = r"(?:[01][0-9]|2[0-3])", r"[0-5][0-9]"
_TIME = rf"{_HOUR}:{_SIXTIETH}:{_SIXTIETH}(?:\.[0-9]{{1,9}})?(?:[Zz]|[+\-]{_HOUR}:{_SIXTIETH})"

_N = r"[0-9]{1,9}"
_MINUTES = rf"{_N}M(?:{_N}S)?"
_CLOCK = rf"T(?:{_N}H(?:{_MINUTES})?|{_MINUTES}|{_N}S)"
_MONTHS = rf"{_N}M(?:{_N}D)?"
_DURATION = rf"P(?:(?:{_N}Y(?:{_MONTHS})?|{_MONTHS}|{_N}D)(?:{_CLOCK})?|{_CLOCK}|{_N}W)"

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"  # at most 255 characters
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?\^_`{|}~\-]"
_EMAIL = rf"{_ATOM}(?:\.?{_ATOM}){{0,31}}@{_LABEL}(?:\.{_LABEL}){{1,2}}"  # at most 63 characters before the @

_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_GROUP = r"[0-9A-Fa-f]{1,4}"
_SHORTENED = [
    (rf"{_GROUP}(?::{_GROUP}){{{left - 1}}}" if left else "")
    + "::"
    + (rf"(?:{_GROUP}(?::{_GROUP}){{0,{6 - left}}})?" if left < 7 else "")
    for left in range(8)
]
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_IPV6 = rf"(?:{_GROUP}(?::{_GROUP}){{7}}|{'|'.join(_SHORTENED)})"

_CHARACTER = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@\-]|%[0-9A-Fa-f]{2})"
_AUTHORITY = rf"(?:[A-Za-z0-9._~\-]{{1,64}}@)?{_HOST}(?::[0-9]{{1,5}})?"
_PATH = rf"{_CHARACTER}+(?:/{_CHARACTER}*)*"
_BEHIND = rf"(?:\?(?:{_CHARACTER}|[/?])*)?(?:\#(?:{_CHARACTER}|[/?])*)?"
_URI = rf"[A-Za-z][A-Za-z0-9+.\-]*:(?://{_AUTHORITY}(?:/{_CHARACTER}*)*|/?{_PATH}){_BEHIND}"

FORMAT_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": _URI,
}
