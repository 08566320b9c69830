"""The pages in a real Chromium, driven by Playwright. Skipped, with the reason, where none is installed."""
