-- needs now
-- For the scripts that acquire locks.
local KEPT = 7 * 86400000 -- ms after which a key leaves the index if no worker looks after it

-- Return the next fencing number, as text. It is the server's microseconds, or one more than the last
-- number, so it grows through a flush, a fail-over and a clock set back. A last number above 2 ^ 53,
-- which cannot be counted up by one, is of another program, and is ignored.
local function next_fence()
  local last = tonumber(redis.call('GET', fence) or '0') or 0
  local number = time[1] * 1000000 + time[2]
  if last >= number and last < 2 ^ 53 then
    number = last + 1
  end
  local text = string.format('%.0f', number)
  redis.call('SET', fence, text)
  return text
end
