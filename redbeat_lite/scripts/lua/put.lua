-- Create, edit and remove entries, each only if its state is still what the writer read.
-- KEYS[1] due  KEYS[2] entries  KEYS[3] state  KEYS[4] quarantine  KEYS[5] meta  KEYS[6] leader
-- ARGV[1] wake channel  ARGV[2] format this process understands
-- ARGV[3] token  ARGV[4] term of the leader that writes, '' for anybody else; then for each entry:
--   name, state expected or '' for none, new state or '' to remove it, definition or '' to keep it, due time
-- returns {0} this term is over, nothing was written
--       | {-1, format} a newer process has been here, nothing was written
--       | {1, done, ...} per entry: 1 written (now, or by an earlier try of the same call), 0 the state was another
local due, entries, state, quarantine, meta, leader = unpack(KEYS)
if ARGV[3] ~= '' then
  local held = redis.call('HMGET', leader, 'token', 'term')
  if held[1] ~= ARGV[3] or held[2] ~= ARGV[4] then
    return {0}
  end
end
local stored = tonumber(redis.call('HGET', meta, 'format') or ARGV[2])
if stored and stored > tonumber(ARGV[2]) then
  return {-1, stored}
end
redis.call('HSET', meta, 'format', ARGV[2])

local function head()
  return tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or 'inf')
end

local quarantined = redis.call('EXISTS', quarantine) == 1
local was, results = head(), {1}
for i = 5, #ARGV, 5 do
  local name, expected, after, definition, score = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local current = redis.call('HGET', state, name) or ''
  -- A client that lost the reply sends the same again. The state alone would not tell: two writers who read the same
  -- version arrive at the same next state with different definitions.
  local done = after ~= '' and current == after
    and (definition == '' or redis.call('HGET', entries, name) == definition)
  if not done and current == expected then
    done = true
    if quarantined then
      redis.call('HDEL', quarantine, name)
    end
    if after == '' then
      redis.call('HDEL', state, name)
      redis.call('HDEL', entries, name)
      redis.call('ZREM', due, name)
    else
      redis.call('HSET', state, name, after)
      redis.call('ZADD', due, score, name)
      if definition ~= '' then
        redis.call('HSET', entries, name, definition)
      end
    end
  end
  results[#results + 1] = done and 1 or 0
end
if head() < was then
  redis.call('PUBLISH', ARGV[1], 'head')
end
return results
