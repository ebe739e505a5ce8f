-- needs now
-- Return the last rows of entries.
-- KEYS: entries...
-- ARGS: limit
--   entries: the key of each one's rows   limit: most rows of each entry
-- returns for each entry {row, nominal time, ...}, the newest first; and as the last item now_ms
local found = {}
for n, key in ipairs(entries) do
  found[n] = redis.call('ZREVRANGE', key, 0, tonumber(limit) - 1, 'WITHSCORES')
end
found[#entries + 1] = now
return found
