"""The service's connections: accepted, bounded in number, size and time, and ended.

uvicorn speaks HTTP with httptools, which has no limits. Its other parser, h11, is written in Python
and bounds the size of a head. Neither bounds the time of a head or the number of idle connections.
So these are here:

- `protocol`: one connection. A head has a size, a number of fields and a time.
- `crowd`: all of them. Each address has so many that wait for their next request.
- `accepting`: where they come from. Whoever connects is counted before the first byte, and before
  the handshake of TLS. Running out of files is logged and counted.
"""
