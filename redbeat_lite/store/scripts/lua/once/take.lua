-- needs fence
-- Acquire the locks of tasks that are about to be published, each on its own.
-- KEYS[1] index  [2] fence  then for each claim: lock, waiters
-- ARGV[1] how many claims, at most 1,000  [2] kept_ms of locks that no worker looks after
--     then for each claim: key, task id, lease_ms, ms until it may run, holder, queue,
--     ms for which its message lives (0: no end),
--     ms after which another task may take the lock if this one is still queued (0: never)
-- returns for each claim 1 acquired, now or before by the same task id
--     | 0 another task has the lock or waits for it
local now = now_ms()
-- This write needs no memory. A server without memory takes the writes of a script after its first
-- one.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
local fence = next_fences(KEYS[2], tonumber(ARGV[1]))
local taken = {}
for i = 1, tonumber(ARGV[1]) do
  local lock, waiters = KEYS[2 * i + 1], KEYS[2 * i + 2]
  local a = 3 + 8 * (i - 1)
  local key, id, lease, due = ARGV[a], ARGV[a + 1], tonumber(ARGV[a + 2]), now + tonumber(ARGV[a + 3])
  -- The lock lives as long as its message may run. After a lease a worker looks whether the message
  -- is still queued.
  local ends = due + math.max(lease, tonumber(ARGV[a + 6]))
  local l = redis.call('HMGET', lock, 'task', 'state', 'yields')
  local owner, yields = l[1], tonumber(ARGV[a + 7])
  if owner and owner ~= id and l[2] == 'queued' and l[3] and now >= tonumber(l[3]) then
    owner = false
  end
  if owner == id then
    -- A publish that is repeated, or a retry that is sent while the run before it still holds the
    -- lock.
    if redis.call('PTTL', lock) < ends - now then
      redis.call('PEXPIREAT', lock, ends)
      redis.call('ZADD', KEYS[1], due + lease, key)
    end
    taken[i] = 1
  elseif owner or redis.call('EXISTS', waiters) == 1 then
    if not owner then
      -- Nobody may have looked after those who wait for so long that they have left the index.
      redis.call('ZADD', KEYS[1], now, key)
    end
    taken[i] = 0
  else
    redis.call('HSET', lock, 'token', 'queued|' .. id, 'task', id, 'state', 'queued', 'since', now, 'due', due,
      'lease', lease, 'fence', string.format('%.0f', fence), 'holder', ARGV[a + 4], 'queue', ARGV[a + 5])
    if yields > 0 then
      redis.call('HSET', lock, 'yields', now + yields)
    else
      redis.call('HDEL', lock, 'yields')
    end
    redis.call('PEXPIREAT', lock, ends)
    redis.call('ZADD', KEYS[1], due + lease, key)
    fence = fence + 1
    taken[i] = 1
  end
end
return taken
