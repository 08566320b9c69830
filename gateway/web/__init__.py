"""The pages that the server shows to browsers: `/playground` and `/dashboard`.

`static/` holds them as a browser gets them: HTML, style sheets and ES modules, with no build step. What they need of
others is in `static/vendor/`, whose `manifest.json` names origin, version, licence and digest of every file.
"""
