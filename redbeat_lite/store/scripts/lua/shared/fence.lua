-- needs now
-- For the scripts that give out fencing numbers.
-- takes the key of the last number, and how many numbers to give out
-- returns the first of them, and the last of them as text
-- The first is the server's microseconds, or one more than the last number. So they grow through a
-- flush, a fail-over and a clock set back. Above 2 ^ 53 no number can be counted up by one, so such
-- a last number was written by another program, and is ignored.
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
