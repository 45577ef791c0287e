package identity

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/redact"
)

// enrolmentPrefix makes an enrolment token easy to tell from other secrets.
const enrolmentPrefix = "berth-enrol-"

// NewEnrolmentToken makes a one-time token and the hash that is stored of it.
func NewEnrolmentToken() (token redact.String, hash [32]byte, err error) {
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return redact.String{}, hash, fmt.Errorf("make an enrolment token: %w", err)
	}
	token = redact.NewString(enrolmentPrefix + base64.RawURLEncoding.EncodeToString(secret))
	return token, HashEnrolmentToken(token), nil
}

// EnrolmentTokenFor makes the token of one principal and idempotency key: the
// same ones always give the same token, and nobody without the master key can
// tell it.
func (s *Service) EnrolmentTokenFor(who berth.Principal, key string) (token redact.String, hash [32]byte, err error) {
	secret, err := s.cfg.MasterKey.derive("enrolment token", string(who.Kind), who.ID, key)
	if err != nil {
		return redact.String{}, hash, err
	}
	token = redact.NewString(enrolmentPrefix + base64.RawURLEncoding.EncodeToString(secret[:]))
	return token, HashEnrolmentToken(token), nil
}

// HashEnrolmentToken is what is stored of an enrolment token.
func HashEnrolmentToken(token redact.String) [32]byte { return sha256.Sum256([]byte(token.Reveal())) }
