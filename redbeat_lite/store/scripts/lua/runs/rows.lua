-- needs now
-- Return the last rows of entries. It changes nothing.
-- KEYS: entries...
-- ARGS: limit
--   entries: key of the rows of each   limit: most rows of each
-- returns for each entry {row, nominal time, ...}, the newest first; then now_ms
local found = {}
for n, key in ipairs(entries) do
  found[n] = redis.call('ZREVRANGE', key, 0, tonumber(limit) - 1, 'WITHSCORES')
end
found[#entries + 1] = now_ms()
return found
