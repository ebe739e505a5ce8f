-- needs now
-- For the scripts that give out fencing numbers.
-- takes the key of the last one
-- returns the server's microseconds, or one more than the last number: grows through a flush, a fail-over and a clock
-- set back. What is no number that counts up in ones, somebody else has written, and begins anew.
local function next_fence(key)
  local last = tonumber(redis.call('GET', key) or '0') or 0
  return math.max(time[1] * 1000000 + time[2], last > 0 and last < 2 ^ 53 and last + 1 or 1)
end
