"""The columns of messages, apart from the port: who only looks at a log needs no Arrow."""

import pyarrow as pa

MESSAGE_SCHEMA: pa.Schema = pa.schema(
    [
        ("partition", pa.int32()),
        ("position", pa.string()),
        ("key", pa.string()),
        ("value", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("published_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""The columns of the batches of `Log.read`. Only `key` and `headers` may be null."""
