-- needs now
-- Keep what a running task holds for another lease, but only for its holder.
-- KEYS[1] guard   with a lock also: [2] lock  [3] index
-- ARGV[1] token  [2] task id  [3] attempt  [4] lease_ms
--     [5] 1: put back what a flush of the server took away, 0: never
--     with a lock also: [6] key  [7] fence  [8] holder
-- returns {1 the guard's record is ours | 0 it is not,
--     1 the lock is ours | 0 it is lost | -1 there is none}
local now = now_ms()
local token, id, lease = ARGV[1], ARGV[2], tonumber(ARGV[4])

local g = redis.call('HMGET', KEYS[1], 'token', 'state')
-- A flush takes the guard's record and the lock. If the record is there and the lock is gone, the
-- lease has run out, or the lock was released: by hand, or because the body has ended.
local is_flushed = not g[2] and ARGV[5] == '1'
-- A renewal that arrives after the end of its run finds another state, and brings nothing back.
local guard = 0
if is_flushed or (g[1] == token and g[2] == 'running') then
  redis.call('HSET', KEYS[1], 'state', 'running', 'attempt', ARGV[3], 'token', token, 'until', now + lease)
  if redis.call('PTTL', KEYS[1]) < 2 * lease then
    redis.call('PEXPIRE', KEYS[1], 2 * lease)
  end
  guard = 1
end
if not KEYS[2] then
  return {guard, -1}
end

local holder = redis.call('HGET', KEYS[2], 'token')
if not holder and is_flushed then
  redis.call('HSET', KEYS[2], 'token', token, 'task', id, 'state', 'running', 'since', now, 'lease', lease,
    'fence', ARGV[7], 'holder', ARGV[8])
elseif holder ~= token then
  return {guard, 0}
end
redis.call('PEXPIRE', KEYS[2], lease)
redis.call('ZADD', KEYS[3], now + lease, ARGV[6])
return {guard, 1}
