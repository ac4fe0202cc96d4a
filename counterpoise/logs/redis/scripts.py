"""The keys of a log in Redis, and the scripts that keep its promises inside the server.

Redis runs one script at a time and no other command meanwhile. So the checks of a script still hold
when it writes, and readers see all of an append or none of it. A script checks everything before it
writes, because Redis does not roll back.

All keys of the log NAME have one hash tag, so they are on one node of a cluster:

    counterpoise:{NAME}:meta            hash   partition_count, revision, incarnation, owner…
    counterpoise:{NAME}:partitions      hash   partition -> "next first discarded bytes latest"
    counterpoise:{NAME}:stream:P        stream the messages of partition P
    counterpoise:{NAME}:publisher:ID    string "incarnation last_sequence", expires

`next` is the position of the next message to be appended, `first` the first readable position,
`discarded` the position up to which messages were discarded, `bytes` the bytes of all messages
ever appended, `latest` the latest publishing time of its messages.

The message at position p has the id `p-b`, where b - 1 is the number of bytes of messages before it
(keys and headers count too: a reader needs memory for them).
So a position is found without an index, and the bytes of a range are the difference of two ids.
Between `first` and `next` a stream has holes only where the server lost messages: then ENSURE moves
`next` past every position that any consumer knows. Messages before the hole can still be read, and
reading the hole is an error until every reader is past it (TRIM). A
message's fields are `t` (published, microseconds since 1970), `v` (value), and where they are
needed `m` (the latest time before it, if later than its own), `k` (key), `h` (headers, JSON).
"""

from __future__ import annotations

# A number in Redis' form; positions stay below 2^53, where Lua counts exactly.
STATE = """
local function text(number) return string.format('%.0f', number) end
local function state_of(key, partition)
    local found = redis.call('HGET', key, partition)
    local state = {next = 0, first = 0, discarded = 0, bytes = 0}
    if found then
        local n, f, d, b, l = string.match(found, '^(%d+) (%d+) (%d+) (%d+) (%S+)$')
        state.next, state.first, state.discarded = tonumber(n), tonumber(f), tonumber(d)
        state.bytes, state.latest = tonumber(b), tonumber(l)
    end
    return state
end
local function keep(key, partition, state)
    redis.call('HSET', key, partition, table.concat({text(state.next), text(state.first),
        text(state.discarded), text(state.bytes),
        state.latest and text(state.latest) or '-'}, ' '))
end
-- The first message at this position or behind it: its position, its id's bytes, its fields.
local function next_message(key, position)
    local found = redis.call('XRANGE', key, text(position) .. '-0', '+', 'COUNT', 1)
    if not found[1] then return nil end
    local at, bytes = string.match(found[1][1], '^(%d+)-(%d+)$')
    return tonumber(at), tonumber(bytes), found[1][2]
end
"""

# KEYS meta, partitions, publisher, streams…
# ARGV partition_count, publisher's first sequence or '', seconds to remember it, number of streams,
# their partitions…, without a first sequence that of each message…, then for each message: stream
# (1..), time or '', value, '=' and key or '', headers
APPEND = (
    STATE
    + """
local meta = redis.call('HMGET', KEYS[1], 'partition_count', 'incarnation')
if not meta[1] then return {'missing'} end
if meta[1] ~= ARGV[1] then return {'stale', meta[1]} end
local first, remember, streams = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local count = tonumber(meta[1])
for i = 1, streams do
    local partition = tonumber(ARGV[4 + i])
    if not partition or partition < 0 or partition >= count then return {'range'} end
end
local messages = (#ARGV - 4 - streams) / (first and 5 or 6)
local function sequence(message)
    return first and first + message or tonumber(ARGV[5 + streams + message])
end
local base = 5 + streams + (first and 0 or messages)
for at = base + 1, #ARGV, 5 do
    local time = ARGV[at]
    if time ~= '' and not (string.match(time, '^%-?%d+$') and #time < 20) then return {'time'} end
end
local last = -1
local known = redis.call('GET', KEYS[3])
if known then
    local incarnation, sequence = string.match(known, '^(%S+) (%d+)$')
    if incarnation == meta[2] then last = tonumber(sequence) end
end
local skip = first and math.max(0, math.min(messages, last + 1 - first)) or 0
while skip < messages and sequence(skip) <= last do skip = skip + 1 end
if skip == messages then return {'ok', 0} end
local time = redis.call('TIME')
local now = time[1] .. string.format('%06d', time[2])
local states = {}
for message = skip, messages - 1 do
    local at = base + message * 5
    local stream = tonumber(ARGV[at])
    local state = states[stream]
    if not state then
        state = state_of(KEYS[2], ARGV[4 + stream])
        states[stream] = state
    end
    local published = ARGV[at + 1]
    if published == '' then published = now end
    local value, key, headers = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
    local fields = {'t', published, 'v', value}
    if state.latest and tonumber(published) < state.latest then
        fields[#fields + 1] = 'm'
        fields[#fields + 1] = text(state.latest)
    else
        state.latest = tonumber(published)
    end
    if key ~= '' then
        fields[#fields + 1] = 'k'
        fields[#fields + 1] = string.sub(key, 2)
    end
    if headers ~= '' then
        fields[#fields + 1] = 'h'
        fields[#fields + 1] = headers
    end
    redis.call('XADD', KEYS[3 + stream], text(state.next) .. '-' .. text(state.bytes + 1),
        unpack(fields))
    state.next = state.next + 1
    state.bytes = state.bytes + #value + #key + #headers
end
for stream, state in pairs(states) do keep(KEYS[2], ARGV[4 + stream], state) end
redis.call('SET', KEYS[3], meta[2] .. ' ' .. text(sequence(messages - 1)), 'EX', remember)
return {'ok', messages - skip}
"""
)

# KEYS streams…   ARGV after how many bytes of messages to stop, a position for each stream
# Answers the present (nil without the right to call TIME), then of each stream the time `t` of the
# first message from there on, or nil
AGES = """
local now = redis.pcall('TIME')
local present = not now.err and now[1] .. string.format('%06d', now[2])
local answer, bytes_left = {present}, tonumber(ARGV[1])
for i = 1, #KEYS do
    local published = false
    local found = bytes_left > 0
        and redis.call('XRANGE', KEYS[i], ARGV[i + 1] .. '-0', '+', 'COUNT', 1)[1]
    local fields = found and found[2] or {}
    for at = #fields, 2, -2 do
        bytes_left = bytes_left - #fields[at]
        if fields[at - 1] == 't' then published = fields[at] end
    end
    answer[#answer + 1] = published
end
return answer
"""

# KEYS meta, publisher
NEXT_SEQUENCE = """
local incarnation = redis.call('HGET', KEYS[1], 'incarnation')
if not incarnation then return {'missing'} end
local known = redis.call('GET', KEYS[2])
if known then
    local mark, sequence = string.match(known, '^(%S+) (%d+)$')
    if mark == incarnation then return {'ok', sequence} end
end
return {'ok', '-1'}
"""

_BYTES = """
-- Bytes of values before a position, nil if it was trimmed.
local function bytes_before(key, state, position)
    if position < state.first then return nil end
    local at, bytes = next_message(key, position)
    return at and bytes - 1 or state.bytes
end
-- The first end in (start, last] before which there are `most` bytes or more, else `last`.
local function reaching(key, state, start, last, most)
    local zero, total = bytes_before(key, state, start), bytes_before(key, state, last)
    if not zero or not total or total - zero < most then return last, total, zero end
    local low, low_bytes, high, high_bytes = start, zero, last, total
    local guess = true
    while high - low > 1 do
        local middle = math.floor((low + high) / 2)
        if guess and high_bytes > low_bytes then
            local share = (zero + most - low_bytes) / (high_bytes - low_bytes)
            middle = low + math.floor(share * (high - low))
            middle = math.max(low + 1, math.min(high - 1, middle))
        end
        guess = not guess
        local bytes = bytes_before(key, state, middle)
        if not bytes then return last, total, zero end
        if bytes - zero >= most then high, high_bytes = middle, bytes
        else low, low_bytes = middle, bytes end
    end
    return high, high_bytes, zero
end
"""

# KEYS stream   ARGV position, the first and the last byte of a part of its message
# Answers the id, the sizes of fields and values, and this part of them one after the other
PART = """
local found = redis.call('XRANGE', KEYS[1], ARGV[1] .. '-0', ARGV[1] .. '-18446744073709551615')
if not found[1] then return {} end
local fields, sizes = found[1][2], {}
for i = 1, #fields do sizes[i] = #fields[i] end
local part = string.sub(table.concat(fields), tonumber(ARGV[2]), tonumber(ARGV[3]))
return {found[1][1], sizes, part}
"""

# KEYS meta, partitions, stream
# ARGV partition, start, end or '', most messages, most bytes
# Answers next, first, discarded, the end of a chunk from start, and the first message from start on
PLAN = (
    STATE
    + _BYTES
    + """
if redis.call('EXISTS', KEYS[1]) == 0 then return {'missing'} end
local state = state_of(KEYS[2], ARGV[1])
local start, last = tonumber(ARGV[2]), tonumber(ARGV[3]) or state.next
last = math.min(last, state.next, start + tonumber(ARGV[4]))
if start >= state.first and start < last then
    last = reaching(KEYS[3], state, start, last, tonumber(ARGV[5]))
end
local there = next_message(KEYS[3], math.max(start, state.first)) or state.next
return {'ok', text(state.next), text(state.first), text(state.discarded), text(last), text(there)}
"""
)

# KEYS partitions, streams…   ARGV partition, start, end for each stream
# Answers for each the bytes of [start, end), -1 if unknown
WEIGH = (
    STATE
    + _BYTES
    + """
local answers = {}
for i = 1, #KEYS - 1 do
    local state = state_of(KEYS[1], ARGV[i * 3 - 2])
    local start = bytes_before(KEYS[1 + i], state, tonumber(ARGV[i * 3 - 1]))
    local last = bytes_before(KEYS[1 + i], state, tonumber(ARGV[i * 3]))
    answers[i] = (start and last) and text(last - start) or '-1'
end
return answers
"""
)

# KEYS partitions, streams…   ARGV partition, start, end, most bytes for each stream
# Answers for each the last end with no more bytes than that, those bytes, and the size of the
# message there
FIT = (
    STATE
    + _BYTES
    + """
local answers = {}
for i = 1, #KEYS - 1 do
    local key, state = KEYS[1 + i], state_of(KEYS[1], ARGV[i * 4 - 3])
    local start, last = tonumber(ARGV[i * 4 - 2]), tonumber(ARGV[i * 4 - 1])
    local most = tonumber(ARGV[i * 4])
    local reached, bytes, zero = reaching(key, state, start, last, most + 1)
    if zero and bytes and bytes - zero > most then
        local fits = bytes_before(key, state, reached - 1)
        answers[i] = {text(reached - 1), text((fits or zero) - zero), text(bytes - (fits or zero))}
    else
        answers[i] = {text(reached), (zero and bytes) and text(bytes - zero) or '0', '0'}
    end
end
return answers
"""
)
