-- needs now
-- Tell whether this message is a copy of one that runs or has ended.
-- KEYS: guard
-- ARGS: attempt
-- returns 1 a copy | 2 a copy of a refused message | 0 the first one, or the copy before it died
local g = redis.call('HMGET', guard, 'state', 'attempt', 'until')
local number, last = tonumber(attempt), tonumber(g[2])
if not g[1] or number > last then
  return 0
end
if g[1] == 'refused' and number == last then
  return 2
end
if number < last or g[1] == 'done' then
  return 1
end
return g[1] == 'running' and tonumber(g[3]) > now_ms() and 1 or 0
