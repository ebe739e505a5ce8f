-- needs leads
-- Open and close incidents, and remember how far the feed has been read, in one step.
-- KEYS[1] leader  [2] meta  [3] incidents  [4] closed  [5] deadlines  [6] failures
-- ARGV[1] token  [2] term of the leader, '' for others, who may only open and note  [3] id of the feed up to which it was
-- read before  [4] by now  [5] how many may be open but of the whole schedule  [6] life_ms of the failures; then for each
-- change what, of what, and a value; one that was closed is 'since:incident':
--   'open' incident JSON | 'count' incident JSON | 'end' incident ms | 'told' incident '' | 'gone' incident ''
--   'note' incident JSON: who has taken it up, if it is the same that is still open
--   'fails' entry text, '': none | 'set' deadline ms | 'done' deadline ms: unless it was set again
-- returns {0} this term is over | {2} somebody else has read on | {1, how many were opened, ended or taken up}
local incidents, closed, deadlines, failures = KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local CLOSED = 1000 -- of the stream, about
if ARGV[1] ~= '' then
  if not leads(KEYS[1], ARGV[1], ARGV[2]) then
    return {0}
  end
  if (redis.call('HGET', KEYS[2], 'feed') or '') ~= ARGV[3] then
    return {2}
  end
  if ARGV[3] ~= ARGV[4] then
    redis.call('HSET', KEYS[2], 'feed', ARGV[4])
  end
end

local function stored(field)
  local found = redis.call('HGET', incidents, field)
  local ok, case = pcall(cjson.decode, found or '')
  return ok and type(case) == 'table' and case or nil
end

local function change(field, name, value)
  local case = stored(field)
  if case then
    case[name] = value
    redis.call('HSET', incidents, field, cjson.encode(case))
  end
  return case
end

local changed = 0
for i = 7, #ARGV, 3 do
  local what, of, value = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if what == 'open' then
    if redis.call('HLEN', incidents) < tonumber(ARGV[5]) or string.find(of, '^[%l_]+:$') then
      changed = changed + redis.call('HSETNX', incidents, of, value)
    end
  elseif what == 'count' then
    local case = cjson.decode(value)
    change(of, 'text', case.text)
    change(of, 'count', case.count)
    change(of, 'nominal', case.nominal)
  elseif what == 'note' then
    local case, found = cjson.decode(value), stored(of)
    if found and found.since == case.since then
      change(of, 'note', case.note)
      changed = changed + 1
    end
  elseif what == 'end' then
    local case = stored(of)
    if case then
      -- Under a name of its own, as it may open again before all have heard that it is closed.
      case['until'] = value
      redis.call('HDEL', incidents, of)
      redis.call('HSET', incidents, tostring(case.since) .. ':' .. of, cjson.encode(case))
      changed = changed + 1
    end
  elseif what == 'told' then
    change(of, 'told', true)
  elseif what == 'gone' then
    local found = redis.call('HGET', incidents, of)
    if found then
      redis.call('XADD', closed, 'MAXLEN', '~', CLOSED, '*', 'of', of, 'incident', found)
      redis.call('HDEL', incidents, of)
    end
  elseif what == 'fails' then
    if value == '' then
      redis.call('HDEL', failures, of)
    else
      redis.call('HSET', failures, of, value)
      redis.call('PEXPIRE', failures, ARGV[6])
    end
  elseif what == 'set' then
    redis.call('ZADD', deadlines, value, of)
  elseif redis.call('ZSCORE', deadlines, of) == value then
    redis.call('ZREM', deadlines, of)
  end
end
return {1, changed}
