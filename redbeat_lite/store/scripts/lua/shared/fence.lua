-- needs now
-- For scripts that acquire locks.
local INDEX_LIFE = 7 * 86400000 -- ms for which a key stays in the index if no worker checks its lock

-- Return the next fencing number, as text. It is the server's time in microseconds, or the last
-- number plus one if that is larger. So it grows even after a flush, or if the clock was set back.
-- A last number above 2 ^ 53, to which Lua cannot add one, comes from another program: ignore it.
local function next_fence(fence)
  local last = tonumber(redis.call('GET', fence) or '0') or 0
  local number = time[1] * 1000000 + time[2]
  if last >= number and last < 2 ^ 53 then
    number = last + 1
  end
  local text = string.format('%.0f', number)
  redis.call('SET', fence, text)
  return text
end

-- Return whether `task` is a later round of the same step of a pipeline as `other`. The step was
-- started again, so the message of `other` is stale. The ids of all rounds of a step are equal up
-- to the last group of digits, which is the round, with leading zeros (Ref.task_id in
-- pipeline/definition.py).
local function is_later_round(task, other)
  local step = task:match('^(%x+%-%x+%-5%x+%-%x+%-)%d+$')
  return step and other:sub(1, #step) == step and task > other
end
