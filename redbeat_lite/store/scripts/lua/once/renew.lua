-- needs now
-- Extend the guard's record and the lock of a running task by a lease, but only for their holder.
-- KEYS: guard lock? index?
-- ARGS: token task_id attempt lease_ms revive key fence holder
--   revive: 1: restore what a flush of the server has deleted | 0
--   lock, index, key, fence, holder: only for a task with a lock
-- returns {1 the guard's record is ours | 0 it is not,
--     1 the lock is ours | 0 it is lost | -1 there is none}
lease_ms = tonumber(lease_ms)
local runner, state = unpack(redis.call('HMGET', guard, 'token', 'state'))
-- A flush deletes the guard's record and the lock. If only the lock is gone, it has expired, or was
-- released.
local is_flushed = not state and revive == '1'
-- A renewal that arrives after the end of its run finds another state, and restores nothing.
local is_ours = is_flushed or (runner == token and state == 'running')
if is_ours then
  -- Begin with a write that needs no memory. A script that has written may go on if memory is full.
  redis.call('HDEL', guard, '')
  redis.call('HSET', guard, 'state', 'running', 'attempt', attempt, 'token', token, 'until', now + lease_ms)
  if redis.call('PTTL', guard) < 2 * lease_ms then
    redis.call('PEXPIRE', guard, 2 * lease_ms)
  end
end
local ours = is_ours and 1 or 0
if not lock then
  return {ours, -1}
end

local owner = redis.call('HGET', lock, 'token')
if not owner and is_flushed then
  redis.call('HSET', lock, 'token', token, 'task', task_id, 'state', 'running', 'since', now, 'lease', lease_ms,
    'fence', fence, 'holder', holder)
elseif owner ~= token then
  return {ours, 0}
end
redis.call('PEXPIRE', lock, lease_ms)
redis.call('ZADD', index, now + lease_ms, key)
return {ours, 1}
