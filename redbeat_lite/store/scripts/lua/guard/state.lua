-- needs now
-- Tell whether this message is a copy of one that runs or has ended.
-- KEYS[1] guard   ARGV[1] attempt
-- returns 1 a copy | 2 a copy of a refused message | 0 the first one, or the copy before it died
local g = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'until')
if not g[1] or tonumber(ARGV[1]) > tonumber(g[2]) then
  return 0
end
if g[1] == 'refused' and tonumber(ARGV[1]) == tonumber(g[2]) then
  return 2
end
if tonumber(ARGV[1]) < tonumber(g[2]) or g[1] == 'done' then
  return 1
end
return g[1] == 'running' and tonumber(g[3]) > now_ms() and 1 or 0
