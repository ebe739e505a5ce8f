-- needs change
-- Write a line into the record of changes about what no other script does.
-- KEYS[1] record of changes  KEYS[2] the reply of this call, for a minute: who sends it again writes no second line
-- ARGV[1] change  ARGV[2..] names
if redis.call('SET', KEYS[2], '1', 'NX', 'PX', 60000) then
  note_change(KEYS[1], '', ARGV[1], nil, {unpack(ARGV, 2)})
end
