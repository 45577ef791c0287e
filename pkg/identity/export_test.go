package identity

import "time"

// ForgetKeys makes the next unknown kid read the keys at once, as if the
// interval had passed.
func ForgetKeys(s *Service) {
	s.keys.mu.Lock()
	defer s.keys.mu.Unlock()
	s.keys.tried = time.Time{}
}
