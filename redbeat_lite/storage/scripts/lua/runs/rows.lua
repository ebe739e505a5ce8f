-- The last rows of each of these entries.
-- KEYS[n] rows of an entry   ARGV[1] how many of each
-- returns for each entry {row, nominal time, ...}, the newest first
local found = {}
for n, key in ipairs(KEYS) do
  found[n] = redis.call('ZREVRANGE', key, 0, tonumber(ARGV[1]) - 1, 'WITHSCORES')
end
return found
