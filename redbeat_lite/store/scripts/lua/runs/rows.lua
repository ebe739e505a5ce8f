-- needs now
-- The last rows of each of these entries.
-- KEYS: entries...
-- ARGS: limit
--   entries: the rows of each   limit: rows of each
-- returns for each entry {row, nominal time, ...}, the newest first; and at the end now_ms
local found = {}
for n, key in ipairs(entries) do
  found[n] = redis.call('ZREVRANGE', key, 0, tonumber(limit) - 1, 'WITHSCORES')
end
found[#entries + 1] = now_ms()
return found
