-- needs cut
-- Those of a part of the schedule that may be meant, as far as their texts tell undecoded; changes nothing. 5,000 take some 5 ms.
-- KEYS[1] due  KEYS[2] entries  KEYS[3] state  KEYS[4] names  KEYS[5] meta
-- ARGV[1] first rank  ARGV[2] how many are looked at  ARGV[3] how many are enough  ARGV[4] bytes of a text that are of any use
-- ARGV[5] what names begin with, which come by name; '' for all, which come as they are due
-- ARGV[6] pattern of states  ARGV[7] JSON of what may be meant: {{{text in the name, ...}, {text in the definition, ...}}, ...}
-- returns {how many are stored, freezes or false, how many were looked at, 1: there are more in the range | 0,
--     {name, ...}, {definition, ...}, {state, ...}, {due, ...}}
local range = {'ZRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1}
if ARGV[5] ~= '' then  -- no UTF-8 has that byte
  range = {'ZRANGE', KEYS[4], '[' .. ARGV[5], '(' .. ARGV[5] .. '\255', 'BYLEX', 'LIMIT', ARGV[1], ARGV[2]}
end

local function has(where, texts)
  for _, text in ipairs(texts) do
    if not where:find(text, 1, true) then
      return false
    end
  end
  return true
end

local all, looked, found, meant = redis.call(unpack(range)), 0, {{}, {}, {}, {}}, cjson.decode(ARGV[7])
while looked < #all and #found[1] < tonumber(ARGV[3]) do
  local last = math.min(looked + 100, #all)  -- few are wasted when these are enough
  local definitions = redis.call('HMGET', KEYS[2], unpack(all, looked + 1, last))
  local states = redis.call('HMGET', KEYS[3], unpack(all, looked + 1, last))
  for n, definition in ipairs(definitions) do
    local name, state, fits = all[looked + n], states[n] or '', false
    if definition and state:find(ARGV[6]) then
      for _, texts in ipairs(meant) do
        fits = fits or (has(name, texts[1]) and has(definition, texts[2]))
      end
    end
    if fits then
      for part, value in ipairs({name, definition, state, redis.call('ZSCORE', KEYS[1], name)}) do
        table.insert(found[part], value)
      end
    end
  end
  looked = last
end
return {redis.call('HLEN', KEYS[2]), redis.call('HGET', KEYS[5], 'freezes'), looked,
  (looked < #all or #all == tonumber(ARGV[2])) and 1 or 0, found[1],
  all_cut(found[2], tonumber(ARGV[4])), all_cut(found[3], tonumber(ARGV[4])), found[4]}
