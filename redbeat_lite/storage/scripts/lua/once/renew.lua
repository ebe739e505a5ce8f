-- needs now
-- Keep what a running task holds for another lease, but only for its holder.
-- KEYS[1] guard   with a lock also: [2] lock  [3] waiters  [4] index  [5] last
-- ARGV[1] token  [2] task id  [3] attempt  [4] lease_ms  [5] 1: put back what a flush of the server took away, 0: never
--     with a lock also: [6] key  [7] fence  [8] holder  [9] kept_ms of what nobody looks after
-- returns {1 the guard's record is ours | 0 it is not, 1 the lock is ours | 0 it is lost | -1 there is none}
local now = now_ms()
local token, id, lease, revive = ARGV[1], ARGV[2], tonumber(ARGV[4]), ARGV[5] == '1'

local guard = 0
local g = redis.call('HMGET', KEYS[1], 'token', 'state', 'until')
-- A flush takes the guard's record and the lock, and a clock that leaps lets both run out. Where the record is as it
-- should be and the lock is not there, somebody has freed it: by hand, or because the body has ended.
local swept = not g[3] or tonumber(g[3]) <= now
-- The lock may have run out, while the server was away perhaps, but nobody has had it since. What is noted there tells
-- more than a caller may know who renews for its child.
local of, fence, who = string.match(KEYS[5] and redis.call('GET', KEYS[5]) or '', '^([^|]*)|([^|]*)|(.*)$')
local last = of == token
-- A renewal that comes after the end of its run finds another state, and must not bring anything back to life.
if (g[1] == token and g[2] == 'running') or (not g[2] and (revive or last)) then
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
if holder ~= token then
  -- After a flush nobody can tell who has had it: whoever waits may have been told that it is free.
  local forgotten = not last and (not revive or redis.call('EXISTS', KEYS[3]) == 1)
  if holder or guard == 0 or not swept or forgotten then
    return {guard, 0}
  end
  redis.call('HSET', KEYS[2], 'token', token, 'task', id, 'state', 'running', 'since', now, 'lease', lease,
    'fence', last and fence or ARGV[7], 'holder', last and who or ARGV[8])
end
redis.call('PEXPIRE', KEYS[2], lease)
if not last then
  local held = redis.call('HMGET', KEYS[2], 'fence', 'holder')
  fence, who = held[1] or ARGV[7], held[2] or ARGV[8]
end
redis.call('SET', KEYS[5], token .. '|' .. fence .. '|' .. who, 'PX', math.max(tonumber(ARGV[9]), 2 * lease))
redis.call('ZADD', KEYS[4], now + lease, ARGV[6])
return {guard, 1}
