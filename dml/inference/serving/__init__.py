"""An index as a page in the browser, and as a JSON API."""
