-- needs now
-- For the scripts that give out fencing numbers.
-- takes the key of the last one, and how many are wanted
-- returns the first of them, the server's microseconds or one more than the last number, and the last of them as text. They
-- grow through a flush, a fail-over and a clock set back. What does not count up in ones somebody else has written.
local function next_fences(key, count)
  local first = time[1] * 1000000 + time[2]
  local text = string.format('%.0f', first + count - 1)
  local last = tonumber(redis.call('SET', key, text, 'GET') or '0') or 0
  if last >= first and last < 2 ^ 53 then
    first, text = last + 1, string.format('%.0f', last + count)
    redis.call('SET', key, text)
  end
  return first, text
end
