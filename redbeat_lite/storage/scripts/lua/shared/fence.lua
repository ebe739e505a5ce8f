-- needs now
-- For the scripts that give out fencing numbers.
-- takes the key of the last one, and how many are wanted
-- returns the first of them, the server's microseconds, or one more than the last number: grows through a flush, a fail-over
-- and a clock set back. What is no number that counts up in ones, somebody else has written, and begins anew.
local function next_fences(key, count)
  local first = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('SET', key, string.format('%.0f', first + count - 1), 'GET') or '0') or 0
  if last >= first and last < 2 ^ 53 then
    first = last + 1
    redis.call('SET', key, string.format('%.0f', last + count))
  end
  return first
end
