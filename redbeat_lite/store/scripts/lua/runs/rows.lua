-- needs now
-- The last rows of each of these entries.
-- KEYS[n] rows of an entry   ARGV[1] how many of each
-- returns for each entry {row, nominal time, ...}, the newest first; and at the end now_ms
local found = {}
for n, key in ipairs(KEYS) do
  found[n] = redis.call('ZREVRANGE', key, 0, tonumber(ARGV[1]) - 1, 'WITHSCORES')
end
found[#KEYS + 1] = now_ms()
return found
