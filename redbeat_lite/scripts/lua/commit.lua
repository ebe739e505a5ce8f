-- Advance entries that were planned, each only if the term still runs and the entry is still what was planned;
-- where broker and schedule share a database, send its messages in the same step.
-- KEYS[1] leader  KEYS[2] due  KEYS[3] entries  KEYS[4] state  KEYS[5] meta  KEYS[6..] lists of the broker
-- ARGV[1] token  ARGV[2] term  ARGV[3] now_ms, then for each entry:
--   name, guard (what its state must begin with), new state or '' to remove it, new due time, number of commands,
--   and for each command: 'lpush' index-of-KEYS payload | 'pexpire' index-of-KEYS ms | 'publish' channel payload
-- returns {0} this term is over
--       | {1, result, ...} per entry: 1 advanced, 0 not what was planned, text: its messages were refused, because of this
local held = redis.call('HMGET', KEYS[1], 'token', 'term')
if held[1] ~= ARGV[1] or held[2] ~= ARGV[2] then
  return {0}
end
local due, entries, state = KEYS[2], KEYS[3], KEYS[4]

local function refused(first, count)
  for c = first, first + 3 * (count - 1), 3 do
    if ARGV[c] == 'lpush' then
      local kind = redis.call('TYPE', KEYS[tonumber(ARGV[c + 1])])['ok']
      if kind ~= 'list' and kind ~= 'none' then
        return 'the queue is a ' .. kind .. ', not a list'
      end
    end
  end
end

local function send(first, count)
  for c = first, first + 3 * (count - 1), 3 do
    local command, target, value = ARGV[c], ARGV[c + 1], ARGV[c + 2]
    if command == 'publish' then
      redis.call('PUBLISH', target, value)
    else
      redis.call(command, KEYS[tonumber(target)], value)
    end
  end
end

local results, i = {1}, 4
while i <= #ARGV do
  local name, guard, after, score, count = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], tonumber(ARGV[i + 4])
  local before = redis.call('HGET', state, name)
  local result = 0
  if before and string.sub(before, 1, #guard) == guard then
    local reason = refused(i + 5, count)
    result = reason or 1
    if not reason then
      send(i + 5, count)
      if after == '' then
        redis.call('HDEL', state, name)
        redis.call('HDEL', entries, name)
        redis.call('ZREM', due, name)
      else
        redis.call('HSET', state, name, after)
        redis.call('ZADD', due, score, name)
      end
    end
  end
  results[#results + 1] = result
  i = i + 5 + 3 * count
end
redis.call('HSET', KEYS[5], 'clock', ARGV[3])
return results
